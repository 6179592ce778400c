"""The tables of the archive and of the analytics."""

from django.db import migrations, models

from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField


class Migration(migrations.Migration):
    initial = True

    dependencies = [("sqlqueue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ArchiveSegment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", ExactField(max_length=20, verbose_name="kind")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("first_offset", models.BigIntegerField(verbose_name="from")),
                ("last_offset", models.BigIntegerField(verbose_name="to")),
                ("row_count", models.BigIntegerField(verbose_name="rows")),
                ("lowest", models.BigIntegerField(verbose_name="lowest")),
                ("highest", models.BigIntegerField(verbose_name="highest")),
                ("checksum", ExactField(max_length=16, verbose_name="checksum")),
                ("schema_version", models.IntegerField(verbose_name="schema version")),
                ("path", UnicodeField(max_length=500, verbose_name="path")),
                ("files", models.IntegerField(verbose_name="files")),
                ("bytes", models.BigIntegerField(verbose_name="bytes")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
            ],
            options={
                "verbose_name": "archive segment",
                "verbose_name_plural": "archive segments",
                "db_table": "sqlqueue_archive_segment",
                "constraints": [
                    models.UniqueConstraint(fields=("topic", "kind", "first_offset"), name="sqlqueue_archive_first"),
                    models.UniqueConstraint(fields=("topic", "kind", "last_offset"), name="sqlqueue_archive_last"),
                ],
            },
        ),
        migrations.CreateModel(
            name="HourlyError",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField(verbose_name="hour")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("fingerprint", ExactField(max_length=200, verbose_name="error")),
                ("dead", models.BigIntegerField(verbose_name="dead")),
                ("example", models.BigIntegerField(null=True, verbose_name="example's offset")),
            ],
            options={
                "verbose_name": "hourly error",
                "verbose_name_plural": "hourly errors",
                "db_table": "sqlqueue_hourly_error",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "hour", "fingerprint"), name="sqlqueue_hourly_error_kind"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="HourlyStatistic",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField(verbose_name="hour")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", ExactField(db_default="", max_length=100, verbose_name="group")),
                ("published", models.BigIntegerField(db_default=0, verbose_name="published")),
                ("key_count", models.BigIntegerField(db_default=0, verbose_name="keys")),
                ("top_key", ExactField(db_default="", max_length=255, verbose_name="busiest key")),
                ("top_key_messages", models.BigIntegerField(db_default=0, verbose_name="messages of the busiest key")),
                ("acked", models.BigIntegerField(db_default=0, verbose_name="acked")),
                ("retried", models.BigIntegerField(db_default=0, verbose_name="retried")),
                ("postponed", models.BigIntegerField(db_default=0, verbose_name="postponed")),
                ("dead", models.BigIntegerField(db_default=0, verbose_name="dead")),
                ("redelivered", models.BigIntegerField(db_default=0, verbose_name="redelivered")),
                ("handler_p50", models.FloatField(null=True, verbose_name="handler, median")),
                ("handler_p95", models.FloatField(null=True, verbose_name="handler, 95 %")),
                ("handler_p99", models.FloatField(null=True, verbose_name="handler, 99 %")),
                ("end_to_end_p50", models.FloatField(null=True, verbose_name="end to end, median")),
                ("end_to_end_p95", models.FloatField(null=True, verbose_name="end to end, 95 %")),
                ("end_to_end_p99", models.FloatField(null=True, verbose_name="end to end, 99 %")),
                ("last_offset", models.BigIntegerField(db_default=0, verbose_name="last offset")),
                ("last_receipt", models.BigIntegerField(db_default=0, verbose_name="last receipt")),
            ],
            options={
                "verbose_name": "hourly statistic",
                "verbose_name_plural": "hourly statistics",
                "db_table": "sqlqueue_hourly_statistic",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "hour"), name="sqlqueue_hourly_statistic_hour"
                    )
                ],
            },
        ),
    ]
