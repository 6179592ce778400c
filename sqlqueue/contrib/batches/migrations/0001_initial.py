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
                ("total", models.BigIntegerField(null=True, verbose_name="total")),
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
            name="BatchMember",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", ExactField(max_length=32, verbose_name="batch")),
                ("number", models.BigIntegerField(verbose_name="number")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("state", models.SmallIntegerField(db_default=0, verbose_name="state")),
            ],
            options={
                "verbose_name": "batch's member",
                "verbose_name_plural": "batches' members",
                "db_table": "sqlqueue_batch_member",
                "indexes": [
                    models.Index(fields=["batch", "state"], name="sqlqueue_batch_member_state"),
                    models.Index(fields=["topic", "consumer_group"], name="sqlqueue_batch_member_topic"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("batch", "number", "consumer_group"), name="sqlqueue_batch_member_number"
                    )
                ],
            },
        ),
    ]
