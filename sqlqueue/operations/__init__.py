"""What operators do with the queue: pause, rewind, replay, republish, reschedule, delete, purge. Imported by
monitoring, consumers and what lies above them."""
