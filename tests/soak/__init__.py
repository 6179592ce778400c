"""The fault harness: publishers and consumers on a real server, a nemesis, and a checker that trusts no process.

`make soak` runs it; `python -m tests.soak --help` has all options. What it does, from the ground up:

history     what processes write down of what they were told and what they did, one file each
workload    the topics, the handlers' options and what messages ask of them: handlers.py and publisher.py do it
labor       long jobs, for processes of their own, and messages beside them that must not wait for these
jobs, named, callers, tasks, periodic
            everyday jobs beside them: messages that expire, tasks, ticks, batches, bursts for a group with limits and
            for one whose partitions are shared, names that are replaced or cancelled, and calls, of which a filter
            leaves some out
schedule    the faults of a run, by its seed
databases, proxy, fleet
            the server, the network, and the processes that the faults are done to
nemesis     does the faults of the schedule
altered, alterations, harm
            what is changed of topics meanwhile, and what becomes of the process that does it
topologies, database_publisher
            several servers: one that is promoted, a cluster, or databases, which have publishers of their own
phases, acts, person
            what fills windows, packets and keys, and what hangs, beside the faults; and who tidies up
watch, backlog
            memory, threads and connections over the run, and how far consumers are behind
records, places, explanations, epochs, progress, starving, checker, tables
            reads the history and the final tables, knows what faults may cause, whether everything moved on in time,
            and finds what went wrong
job_records, job_tables, job_checks, ticks, offers, batches, calls, limits, filters
            the same for everyday jobs
soak, report
            one run from its start to its verdict
"""
