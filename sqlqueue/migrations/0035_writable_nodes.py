"""The server that the publish gate names in a cluster of several writable ones.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from django.db import models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0034_reshard"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="publishgate",
            name="renewals",
            field=models.BigIntegerField(db_default=0, verbose_name="renewals"),
        ),
        online_migration.AddMissingField(
            model_name="publishgate",
            name="writer",
            field=sqlqueue.database.fields.ExactField(db_default="", max_length=201, verbose_name="writer"),
        ),
    ]
