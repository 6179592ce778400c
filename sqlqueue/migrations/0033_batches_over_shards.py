"""Batches whose members are on several shards: a count of relayed members names the shard that they go to.

What processes of the previous version count is on their own shard, which is the default.
"""

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0032_fleet"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="batchpart",
            name="shard",
            field=sqlqueue.database.fields.ExactField(db_default="", max_length=30, verbose_name="shard"),
        ),
    ]
