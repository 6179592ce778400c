"""`python -m tests.soak`: publishers, consumers and a nemesis on a real server, and a checker. `make soak` calls it."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.servers import NAMES
from tests.soak import phases, report, soak, workload
from tests.soak.topologies.choice import TOPOLOGIES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument(
        "--topology", choices=TOPOLOGIES, help="several servers, with failovers or databases, and not one"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults; draining comes on top (default 5)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same schedule of faults (default: any)")
    parser.add_argument("--rate", type=float, default=30.0, help="single messages a second, as far as it goes")
    parser.add_argument("--bulk-rate", type=float, default=240.0, help="and in bulk")
    parser.add_argument("--only", action="append", default=[], help="only this kind of fault (repeatable)")
    parser.add_argument("--calm", action="store_true", help="no faults but those of the phases")
    parser.add_argument(
        "--phases", type=phases.chosen, help="all, none, or names with commas; default: all, of a topology none"
    )
    parser.add_argument("--drain", type=float, default=soak.DRAIN_LIMIT, help="seconds to wait for it at the end")
    parser.add_argument("--history", type=Path, help="keep the history in this folder, whatever comes out")
    parser.add_argument("--sabotage", choices=workload.PLANTED, default="", help="plant a fault into the engine")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    if options.phases is None:
        options.phases = () if options.topology else phases.NAMES
    if options.topology:
        options.database = TOPOLOGIES[options.topology].database
    plan = soak.Plan(
        options.database,
        options.minutes * 60,
        seed,
        options.rate,
        options.bulk_rate,
        tuple(options.only),
        options.sabotage,
        options.phases,
        options.calm,
        options.drain,
        options.topology or "",
    )
    if options.history:
        options.history.mkdir(parents=True)
    folder = options.history or Path(tempfile.mkdtemp(prefix="sqlqueue-soak-history-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=140 if not sys.stdout.isatty() else None)
    console.print(f"{options.minutes:g} minutes on {plan.place}, seed {seed}, history in {folder}", markup=False)
    result = soak.run(plan, folder)
    report.show(result, console)
    report.save(result)
    if result.passed:
        if not options.history:
            shutil.rmtree(folder)
        console.print("Nothing was lost, and nothing was done that must not be.", style="green")
        return 0
    topology = f" --topology={plan.topology}" * bool(plan.topology)
    only = "".join(f" --only={kind}" for kind in plan.only) + " --calm" * plan.calm
    console.print(f"The history is kept in {folder}. The same faults again:", style="red", markup=False)
    console.print(
        f"  python -m tests.soak --database={plan.database}{topology} --minutes={options.minutes:g} --seed={seed}"
        f" --rate={plan.rate:g} --bulk-rate={plan.bulk_rate:g}"
        f" --phases={','.join(plan.phases) or 'none'}{only}",
        markup=False,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
