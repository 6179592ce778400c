"""Which subscriber owns which partition: heartbeats, leases, and their acquisition, balance and recovery. `consumers`,
`spark` and `operations` import it; it imports `log` and the layers below.
"""
