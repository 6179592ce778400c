"""Every text column takes every character, and what is compared by equality is compared exactly.

On MySQL and MariaDB those columns are changed that need it, and only they: in a database of utf8mb4 the log is not
rewritten. SQLite and PostgreSQL have nothing to change.
"""

from typing import Any

from django.db import migrations

import sqlqueue.database.fields
from sqlqueue.database import online_migration
from sqlqueue.database.characters import convert


def convert_all(apps: Any, schema_editor: Any) -> None:
    """Change what needs it, one statement a table."""
    for model in apps.get_app_config("sqlqueue").get_models():
        convert(schema_editor, model)


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0006_blocked_range"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="archivesegment",
                    name="checksum",
                    field=sqlqueue.database.fields.ExactField(max_length=16, verbose_name="checksum"),
                ),
                migrations.AlterField(
                    model_name="archivesegment",
                    name="path",
                    field=sqlqueue.database.fields.UnicodeField(max_length=500, verbose_name="path"),
                ),
                migrations.AlterField(
                    model_name="deliverystate",
                    name="last_error",
                    field=sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="last error"),
                ),
                migrations.AlterField(
                    model_name="message",
                    name="fingerprint",
                    field=sqlqueue.database.fields.ExactField(
                        db_default="", max_length=200, verbose_name="fingerprint"
                    ),
                ),
                migrations.AlterField(
                    model_name="message",
                    name="last_error",
                    field=sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="last error"),
                ),
                migrations.AlterField(
                    model_name="receipt",
                    name="outcome",
                    field=sqlqueue.database.fields.ExactField(max_length=20, verbose_name="outcome"),
                ),
                migrations.AlterField(
                    model_name="replay",
                    name="fingerprint",
                    field=sqlqueue.database.fields.ExactField(
                        db_default="", help_text="empty: any", max_length=200, verbose_name="fingerprint"
                    ),
                ),
                migrations.AlterField(
                    model_name="replay",
                    name="note",
                    field=sqlqueue.database.fields.UnicodeField(db_default="", max_length=300, verbose_name="note"),
                ),
                migrations.AlterField(
                    model_name="replay",
                    name="ordered_by",
                    field=sqlqueue.database.fields.UnicodeField(
                        db_default="", max_length=150, verbose_name="ordered by"
                    ),
                ),
                migrations.AlterField(
                    model_name="replay",
                    name="state",
                    field=sqlqueue.database.fields.ExactField(
                        choices=[
                            ("new", "waits for a consumer process"),
                            ("trial", "the first one is being tried"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "stopped: the trial failed"),
                            ("cancelled", "cancelled"),
                        ],
                        db_default="new",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                migrations.AlterField(
                    model_name="scheduledmessage",
                    name="refusal",
                    field=sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="refusal"),
                ),
                migrations.AlterField(
                    model_name="subscriberheartbeat",
                    name="activity",
                    field=sqlqueue.database.fields.UnicodeField(db_default="", max_length=200, verbose_name="activity"),
                ),
                migrations.AlterField(
                    model_name="subscriberheartbeat",
                    name="address",
                    field=sqlqueue.database.fields.UnicodeField(db_default="", max_length=100, verbose_name="address"),
                ),
                migrations.AlterField(
                    model_name="subscriberheartbeat",
                    name="host",
                    field=sqlqueue.database.fields.UnicodeField(db_default="", max_length=255, verbose_name="host"),
                ),
                migrations.AlterField(
                    model_name="subscriberheartbeat",
                    name="server",
                    field=sqlqueue.database.fields.ExactField(
                        db_default="",
                        help_text="the identity of the server that it writes to",
                        max_length=100,
                        verbose_name="database server",
                    ),
                ),
                migrations.AlterField(
                    model_name="subscriberheartbeat",
                    name="version",
                    field=sqlqueue.database.fields.ExactField(
                        db_default="", help_text="of sqlqueue", max_length=40, verbose_name="version"
                    ),
                ),
                migrations.AlterField(
                    model_name="topic",
                    name="history",
                    field=sqlqueue.database.fields.ExactField(
                        db_default="failures", max_length=10, verbose_name="history"
                    ),
                ),
            ],
        ),
        # MySQL has no transaction for it: run again, it goes on where it was.
        migrations.RunPython(convert_all, migrations.RunPython.noop, atomic=False),
    ]
