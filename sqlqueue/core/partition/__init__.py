"""What an owner knows of a partition, and what it decides from it. Pure. `consumers` holds assigned partitions;
`leases`, `log` and `stats` import only the values that pass through them (`ref`, `blocked`, `window.Read`) and
`limits`.

`assigned` is the interface, and the only module that knows all parts: `window` (how far the log is read), `transitions`
(what happens to one message), `queues` (ordering queues and what is ready), `delays` and `in_doubt` (messages that wait
with a row), `blocked` (messages that wait without one), `rows` (which rows exist), `writes` (the next plan), `budget`
(how much to read), `claim_ahead` (what may start without a write). Parts get the position and other marks as values;
only `assigned` passes them on.
"""
