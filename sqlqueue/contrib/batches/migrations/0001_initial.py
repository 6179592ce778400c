"""The tables of batches."""

from django.db import migrations, models

from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField


class Migration(migrations.Migration):
    initial = True

    dependencies = [("sqlqueue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", ExactField(max_length=32, primary_key=True, serialize=False, verbose_name="id")),
                ("name", UnicodeField(db_default="", max_length=255, verbose_name="name")),
                ("parent", ExactField(db_default="", max_length=32, verbose_name="parent")),
                ("callbacks", models.JSONField(verbose_name="callbacks")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
                ("deadline_at", models.DateTimeField(null=True, verbose_name="deadline")),
                ("sealed_at", models.DateTimeField(null=True, verbose_name="sealed at")),
                ("failed_at", models.DateTimeField(null=True, verbose_name="failed at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("succeeded_at", models.DateTimeField(null=True, verbose_name="succeeded at")),
                ("cancelled_at", models.DateTimeField(null=True, verbose_name="cancelled at")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended at")),
                ("over", models.BooleanField(db_default=False, verbose_name="over")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "sqlqueue_batch",
                "permissions": [("cancel_batch", "Can cancel batches")],
                "indexes": [
                    models.Index(fields=["over", "id"], name="sqlqueue_batch_over"),
                    models.Index(fields=["parent"], name="sqlqueue_batch_parent"),
                    models.Index(fields=["ended_at"], name="sqlqueue_batch_ended"),
                    models.Index(fields=["over", "created_at", "id"], name="sqlqueue_batch_created"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchPart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", ExactField(max_length=32)),
                ("part", models.BigIntegerField()),
                ("topic", ExactField(max_length=104)),
                ("consumer_group", ExactField(max_length=100)),
                ("members", models.BigIntegerField()),
                ("outstanding", models.BigIntegerField()),
                ("dead", models.BigIntegerField(db_default=0)),
            ],
            options={
                "db_table": "sqlqueue_batch_part",
                "indexes": [
                    models.Index(fields=["batch", "outstanding"], name="sqlqueue_batch_part_open"),
                    models.Index(fields=["batch", "dead"], name="sqlqueue_batch_part_dead"),
                    models.Index(fields=["topic", "consumer_group"], name="sqlqueue_batch_part_topic"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("batch", "part", "consumer_group"), name="sqlqueue_batch_part_number"
                    )
                ],
            },
        ),
    ]
