"""The topic whose shards the tests change: see the fixture `handled`."""

from sqlqueue.core.shards import shard_of

TOPIC = "orders"
ALTER = ("queuetopic", "alter", TOPIC, "--shards", "a,b", "--no-input")
KEYS = [f"k{number}" for number in range(8)]
MOVED = [key for key in KEYS if shard_of(key, "ab") == "b"]
STAYS = [key for key in KEYS if key not in MOVED]
