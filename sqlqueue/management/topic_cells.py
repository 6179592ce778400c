"""What the commands' tables of topics say of options that are settings only."""

from __future__ import annotations

from collections.abc import Iterator

from sqlqueue.core.settings import ACKED
from sqlqueue.log.topic_options import of_settings
from sqlqueue.stats.texts import duration
from sqlqueue.stats.topics import TopicSurvey


def by_settings(topic: TopicSurvey) -> Iterator[str]:
    """Yield what this process's settings say beyond the defaults."""
    options = of_settings(topic.name)
    if options.retention_from == ACKED and topic.retention is not None:
        yield "retention from the acks"
    if options.keep_collected is not None:
        yield f"collected kept {duration(options.keep_collected)}"
