"""A process that hosts many subscribers, each with its own threads and connections: what the benchmark kills."""

import argparse
import logging
import signal
import sys
import threading
from dataclasses import replace


def topics_and_groups(groups: int) -> list[tuple[str, str]]:
    """Return so many (topic, group): two groups a topic."""
    return [(f"topic-{number // 2:02}", f"group-{number % 2}") for number in range(groups)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscribers", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    import django

    django.setup()
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    consumers = [
        replace(build(topic, {"group": group}), handler=lambda delivery: None)
        for topic, group in topics_and_groups(arguments.groups)
    ]
    subscribers = [Subscriber(consumers, threads=1) for _ in range(arguments.subscribers)]
    threads = [threading.Thread(target=subscriber.run) for subscriber in subscribers]

    def stop(number: int, frame: object) -> None:
        for subscriber in subscribers:
            subscriber.stop_soon()

    signal.signal(signal.SIGTERM, stop)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(0)


if __name__ == "__main__":
    main()
