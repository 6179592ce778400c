"""What pages, commands and metrics read of the queue: groups, partitions, throughput, dead letters. It changes nothing
but the minutes' activity. Imported by operations and everything above them."""
