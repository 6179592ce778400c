"""What an owner knows of a partition, and what it decides from it. Pure. `consumers` holds assigned partitions;
`leases`, `log` and `stats` import only the values that pass through them (`ref`, `blocked`, `window.Read`) and
the limits of `budget`.

`assigned` is the interface, and the only module that knows all parts: `window` (how far the log is read), `queues`
(ordering queues and what is ready), `waiting` (messages that wait with a row), `blocked` (messages that
wait without one), `writes` (the next plan, and which rows exist), `budget` (how much to read), `claim_ahead` (what may
start without a write). These know nothing of it; `arrivals` (how messages come into memory), `changes` (what becomes of
one) and `settling` (what a settle writes, and when) are functions of a partition.
"""
