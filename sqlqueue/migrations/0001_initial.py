"""The queue's tables. The publish gate's rows, and what holds the generation on PostgreSQL, are added after every migrate:
see models.publish_gate.fill."""

from django.db import migrations, models

from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField, UnicodeTextField


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AckedMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("offset_acked", models.BigIntegerField(verbose_name="watermark")),
                ("marked_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="marked at")),
            ],
            options={
                "db_table": "sqlqueue_acked_mark",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "partition", "priority", "offset_acked"), name="sqlqueue_acked_mark_stream"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("acked", models.BigIntegerField(db_default=0, verbose_name="acked")),
                ("retried", models.BigIntegerField(db_default=0, verbose_name="retried")),
                ("postponed", models.BigIntegerField(db_default=0, verbose_name="postponed")),
                ("dead", models.BigIntegerField(db_default=0, verbose_name="dead")),
                (
                    "filtered",
                    models.BigIntegerField(
                        db_default=0, help_text="acked without a handler, by its filter", verbose_name="filtered"
                    ),
                ),
                ("seconds", models.FloatField(db_default=0, help_text="seconds", verbose_name="handlers' time")),
                (
                    "lag",
                    models.BigIntegerField(help_text="messages; empty: not measured", null=True, verbose_name="lag"),
                ),
            ],
            options={
                "db_table": "sqlqueue_activity",
                "indexes": [models.Index(fields=["minute"], name="sqlqueue_activity_recent")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "minute"), name="sqlqueue_activity_minute"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BlockedRange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("partition_key", ExactField(max_length=255, verbose_name="key")),
                (
                    "low",
                    models.BigIntegerField(
                        help_text="the range begins behind this offset; it only rises", verbose_name="low"
                    ),
                ),
                ("high", models.BigIntegerField(help_text="the last offset of the range", verbose_name="high")),
                (
                    "messages",
                    models.BigIntegerField(
                        db_default=0, help_text="about how many wait; for display only", verbose_name="messages"
                    ),
                ),
            ],
            options={
                "verbose_name": "blocked range",
                "verbose_name_plural": "blocked ranges",
                "db_table": "sqlqueue_blocked_range",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "partition", "priority", "partition_key"),
                        name="sqlqueue_blocked_range_key",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="CollectedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("partition_key", ExactField(max_length=255, verbose_name="key")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("published_at", models.DateTimeField(null=True, verbose_name="published at")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("target_group", ExactField(max_length=100, verbose_name="target group")),
                (
                    "outcomes",
                    models.JSONField(
                        help_text="by group: acked or dead, and the attempts as far as a receipt says",
                        verbose_name="outcomes",
                    ),
                ),
                ("collected_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="collected at")),
                ("kept_until", models.DateTimeField(verbose_name="kept until")),
            ],
            options={
                "verbose_name": "collected message",
                "verbose_name_plural": "collected messages",
                "db_table": "sqlqueue_collected_message",
                "indexes": [
                    models.Index(fields=["kept_until"], name="sqlqueue_collected_until"),
                    models.Index(fields=["message_offset"], name="sqlqueue_collected_offset"),
                    models.Index(fields=["message_id"], name="sqlqueue_collected_id"),
                    models.Index(fields=["partition_key"], name="sqlqueue_collected_key"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ConsumerGroup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("start", models.BigIntegerField(db_default=0, verbose_name="start")),
                ("streamed_to", models.BigIntegerField(db_default=0, verbose_name="streamed to")),
                ("streamed_by", ExactField(db_default="", max_length=32)),
                ("streamed_read", models.BooleanField(db_default=False)),
                ("paused", models.BooleanField(db_default=False, verbose_name="paused")),
                ("flow", UnicodeTextField(null=True, verbose_name="active hours and limits")),
                ("flow_overrides", UnicodeTextField(null=True, verbose_name="overridden hours and limits")),
                ("tokens", models.FloatField(null=True, verbose_name="tokens")),
                ("tokens_at", models.DateTimeField(null=True, verbose_name="tokens counted at")),
                ("failures", models.IntegerField(null=True, verbose_name="failures")),
                ("failures_since", models.DateTimeField(null=True, verbose_name="failures counted since")),
                ("opened_at", models.DateTimeField(null=True, verbose_name="retry budget spent at")),
                ("trial_at", models.DateTimeField(null=True, verbose_name="next trial at")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
            ],
            options={
                "verbose_name": "consumer group",
                "verbose_name_plural": "consumer groups",
                "db_table": "sqlqueue_consumer_group",
                "permissions": [
                    ("pause_consumergroup", "Can pause and resume consumer groups"),
                    ("replay_consumergroup", "Can move consumer groups to another offset"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("topic", "consumer_group"), name="sqlqueue_consumer_group_topic")
                ],
            },
        ),
        migrations.CreateModel(
            name="DeliveryState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("acked", models.BooleanField(db_default=False, verbose_name="acked")),
                (
                    "in_flight",
                    models.SmallIntegerField(
                        choices=[(0, "no"), (1, "together"), (2, "alone")], db_default=0, verbose_name="in flight"
                    ),
                ),
                ("invisible_until", models.DateTimeField(db_default=DatabaseNow(), verbose_name="invisible until")),
                ("retry_count", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("last_error", UnicodeTextField(null=True, verbose_name="last error")),
            ],
            options={
                "verbose_name": "delivery state",
                "verbose_name_plural": "delivery states",
                "db_table": "sqlqueue_delivery_state",
                "permissions": [("reschedule_deliverystate", "Can reschedule and acknowledge deliveries")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "partition", "priority", "message_offset"),
                        name="sqlqueue_state_message",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Duty",
            fields=[
                ("name", ExactField(max_length=30, primary_key=True, serialize=False, verbose_name="name")),
                ("began_at", models.DateTimeField(verbose_name="began at")),
            ],
            options={"db_table": "sqlqueue_duty"},
        ),
        migrations.CreateModel(
            name="EpochSlot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("slot", models.SmallIntegerField(verbose_name="slot")),
                ("epoch", models.IntegerField(verbose_name="epoch")),
            ],
            options={
                "db_table": "sqlqueue_epoch_slot",
                "constraints": [models.UniqueConstraint(fields=("topic", "slot"), name="sqlqueue_epoch_slot_topic")],
            },
        ),
        migrations.CreateModel(
            name="Layout",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("generation", models.IntegerField(verbose_name="generation")),
                ("epoch", models.IntegerField(verbose_name="epoch")),
                ("phase", ExactField(max_length=10, verbose_name="phase")),
                ("partitions", models.IntegerField(verbose_name="partitions")),
                ("base", models.IntegerField(verbose_name="base")),
                ("end", models.BigIntegerField(null=True, verbose_name="end")),
                ("retired_at", models.DateTimeField(null=True, verbose_name="retired at")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
            ],
            options={
                "db_table": "sqlqueue_layout",
                "constraints": [
                    models.UniqueConstraint(fields=("topic", "generation"), name="sqlqueue_layout_generation")
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitShare",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscriber", ExactField(max_length=120, verbose_name="subscriber")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("demand", models.FloatField(verbose_name="demand")),
                ("drew_at", models.DateTimeField(verbose_name="drew at")),
                ("slots", models.IntegerField(verbose_name="slots")),
                ("wanted", models.IntegerField(verbose_name="wanted slots")),
                ("waits_since", models.DateTimeField(null=True, verbose_name="waits since")),
                ("held_back", models.BooleanField(verbose_name="held back")),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "db_table": "sqlqueue_limit_share",
                "indexes": [models.Index(fields=["subscriber"], name="sqlqueue_limit_share_own")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "subscriber"), name="sqlqueue_limit_share_subscriber"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("offset", models.BigAutoField(primary_key=True, serialize=False, verbose_name="offset")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("partition_key", ExactField(db_default="", max_length=255, verbose_name="key")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
                ("published_at", models.DateTimeField(null=True, verbose_name="published at")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("target_group", ExactField(db_default="", max_length=100, verbose_name="target group")),
                ("failed_at", models.DateTimeField(null=True, verbose_name="failed at")),
                ("failure_count", models.IntegerField(db_default=0, verbose_name="failures")),
                ("last_error", UnicodeTextField(null=True, verbose_name="last error")),
                ("original_topic", ExactField(db_default="", max_length=104, verbose_name="original topic")),
                ("original_offset", models.BigIntegerField(null=True, verbose_name="original offset")),
                ("failed_group", ExactField(db_default="", max_length=100, verbose_name="failed group")),
                ("fingerprint", ExactField(db_default="", max_length=200, verbose_name="fingerprint")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "sqlqueue_message",
                "permissions": [
                    ("redeliver_message", "Can deliver messages again, or cancel them"),
                    ("replay_message", "Can replay dead letters"),
                    ("discard_message", "Can discard dead letters"),
                ],
                "indexes": [
                    models.Index(fields=["topic", "partition", "priority", "offset"], name="sqlqueue_message_fetch")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("message_id", "topic", "partition_key"), name="sqlqueue_message_id")
                ],
            },
        ),
        migrations.CreateModel(
            name="Offset",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("position", models.BigIntegerField(verbose_name="position")),
                ("offset_acked", models.BigIntegerField(verbose_name="watermark")),
                ("claimed_to", models.BigIntegerField(verbose_name="claimed to")),
                ("fencing_token", models.BigIntegerField(verbose_name="fencing token")),
                ("updated_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="updated at")),
            ],
            options={
                "verbose_name": "offset",
                "verbose_name_plural": "offsets",
                "db_table": "sqlqueue_offset",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "partition", "priority"),
                        name="sqlqueue_offset_priority",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PartitionLease",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("holder", ExactField(db_default="", max_length=120, verbose_name="holder")),
                ("fencing_token", models.BigIntegerField(db_default=0, verbose_name="fencing token")),
                ("valid_until", models.DateTimeField(null=True, verbose_name="valid until")),
            ],
            options={
                "verbose_name": "partition lease",
                "verbose_name_plural": "partition leases",
                "db_table": "sqlqueue_partition_lease",
                "indexes": [
                    models.Index(fields=["holder"], name="sqlqueue_lease_holder"),
                    models.Index(fields=["topic", "consumer_group", "valid_until"], name="sqlqueue_lease_until"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "partition"), name="sqlqueue_lease_partition"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PeriodicSchedule",
            fields=[
                ("name", ExactField(max_length=100, primary_key=True, serialize=False, verbose_name="name")),
                ("definition", UnicodeTextField(verbose_name="definition")),
                ("digest", ExactField(max_length=16, verbose_name="digest")),
                (
                    "superseded",
                    ExactField(
                        db_default="",
                        help_text="digests of the definitions that this one has replaced",
                        max_length=340,
                        verbose_name="superseded",
                    ),
                ),
                ("paused", models.BooleanField(db_default=False, verbose_name="paused")),
                ("declared_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="declared at")),
                ("attended_until", models.DateTimeField(verbose_name="attended until")),
                (
                    "ticked_to",
                    models.DateTimeField(
                        help_text="all ticks up to this time are published or passed over", verbose_name="ticked to"
                    ),
                ),
                ("next_tick", models.DateTimeField(verbose_name="next tick")),
                ("last_tick", models.DateTimeField(null=True, verbose_name="last tick")),
                ("last_published_at", models.DateTimeField(null=True, verbose_name="last published at")),
                ("refusal", UnicodeTextField(null=True, verbose_name="refusal")),
            ],
            options={
                "verbose_name": "periodic schedule",
                "verbose_name_plural": "periodic schedules",
                "db_table": "sqlqueue_periodic_schedule",
                "permissions": [
                    ("pause_periodicschedule", "Can pause and resume periodic schedules"),
                    ("run_periodicschedule", "Can run periodic schedules now"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("fencing_token", models.BigIntegerField(verbose_name="fencing token")),
                ("serial", models.BigIntegerField(help_text="of the attempt, in its process", verbose_name="serial")),
                ("done", models.FloatField(verbose_name="done")),
                ("total", models.FloatField(null=True, verbose_name="total")),
                ("note", UnicodeField(db_default="", max_length=255, verbose_name="note")),
                ("updated_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="updated at")),
            ],
            options={
                "db_table": "sqlqueue_progress",
                "indexes": [models.Index(fields=["updated_at"], name="sqlqueue_progress_updated")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_offset", "consumer_group"), name="sqlqueue_progress_message"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishGate",
            fields=[
                ("slot", models.IntegerField(primary_key=True, serialize=False, verbose_name="slot")),
                (
                    "generation",
                    models.IntegerField(
                        db_default=0,
                        help_text="of the topics' layouts; who publishes by another one is refused",
                        verbose_name="generation",
                    ),
                ),
                ("writer", ExactField(db_default="", max_length=201, verbose_name="writer")),
                ("value", models.BigIntegerField(db_default=0, verbose_name="value")),
            ],
            options={
                "db_table": "sqlqueue_publish_gate",
            },
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("outcome", ExactField(max_length=20, verbose_name="outcome")),
                ("attempts", models.IntegerField(verbose_name="attempt")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("worker", ExactField(max_length=120, verbose_name="worker")),
                ("serial", models.BigIntegerField(verbose_name="serial")),
            ],
            options={
                "verbose_name": "receipt",
                "verbose_name_plural": "receipts",
                "db_table": "sqlqueue_receipt",
                "indexes": [models.Index(fields=["message_offset", "consumer_group"], name="sqlqueue_receipt_message")],
                "constraints": [models.UniqueConstraint(fields=("worker", "serial"), name="sqlqueue_receipt_serial")],
            },
        ),
        migrations.CreateModel(
            name="RelayPosition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("source", ExactField(max_length=30, verbose_name="source")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("offset", models.BigIntegerField(verbose_name="offset")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
            ],
            options={
                "db_table": "sqlqueue_relay_position",
                "constraints": [
                    models.UniqueConstraint(fields=("source", "partition"), name="sqlqueue_relay_position_of")
                ],
            },
        ),
        migrations.CreateModel(
            name="Request",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    ExactField(
                        choices=[("replay", "replay of dead letters"), ("reschedule", "rescheduling of deliveries")],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                (
                    "consumer_group",
                    ExactField(db_default="", help_text="empty: each its own", max_length=100, verbose_name="group"),
                ),
                ("options", models.JSONField(verbose_name="options")),
                ("through", models.BigIntegerField(verbose_name="up to offset")),
                (
                    "rate",
                    models.FloatField(
                        help_text="messages a second; empty: as fast as it goes", null=True, verbose_name="rate"
                    ),
                ),
                (
                    "state",
                    ExactField(
                        choices=[
                            ("new", "waits for a consumer process"),
                            ("trial", "the first one is being tried"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        db_default="new",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("total", models.BigIntegerField(db_default=0, verbose_name="to do")),
                ("done", models.BigIntegerField(db_default=0, verbose_name="done")),
                ("at_partition", models.IntegerField(db_default=-1, verbose_name="at partition")),
                ("at_priority", models.SmallIntegerField(db_default=-1, verbose_name="at priority")),
                ("at_offset", models.BigIntegerField(db_default=0, verbose_name="at offset")),
                ("trial_offset", models.BigIntegerField(null=True, verbose_name="trial's offset")),
                (
                    "ordered_by",
                    UnicodeField(db_default="", max_length=150, verbose_name="ordered by"),
                ),
                ("note", UnicodeField(db_default="", max_length=300, verbose_name="note")),
                (
                    "created_at",
                    models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at"),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=DatabaseNow(), verbose_name="updated at"),
                ),
            ],
            options={
                "verbose_name": "request",
                "verbose_name_plural": "requests",
                "db_table": "sqlqueue_request",
                "indexes": [models.Index(fields=["state"], name="sqlqueue_request_state")],
            },
        ),
        migrations.CreateModel(
            name="Result",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", ExactField(db_default="", max_length=255, verbose_name="key")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("outcome", ExactField(max_length=20, verbose_name="outcome")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("error", UnicodeTextField(null=True, verbose_name="error")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("task", UnicodeTextField(null=True, verbose_name="task")),
                ("run", UnicodeTextField(null=True, verbose_name="state")),
                ("run_token", models.BigIntegerField(db_default=0, verbose_name="fencing token")),
                ("serial", models.BigIntegerField(db_default=0, verbose_name="serial")),
            ],
            options={
                "db_table": "sqlqueue_result",
                "indexes": [models.Index(fields=["expires_at"], name="sqlqueue_result_expires")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_id", "topic", "partition_key", "consumer_group"),
                        name="sqlqueue_result_message",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduledMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", ExactField(db_default="", max_length=255, verbose_name="key")),
                (
                    "message_id",
                    ExactField(  # type: ignore[misc]
                        help_text="empty: a fresh one when it is due", max_length=255, null=True, verbose_name="id"
                    ),
                ),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("target_group", ExactField(db_default="", max_length=100, verbose_name="target group")),
                ("due_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="due at")),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
                ("refused", models.BooleanField(db_default=False, verbose_name="refused")),
                ("refusal", UnicodeTextField(null=True, verbose_name="refusal")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                (
                    "expires_after",
                    models.FloatField(
                        help_text="seconds from when it is due; empty: never", null=True, verbose_name="expires after"
                    ),
                ),
            ],
            options={
                "verbose_name": "scheduled message",
                "verbose_name_plural": "scheduled messages",
                "db_table": "sqlqueue_scheduled_message",
                "indexes": [
                    models.Index(fields=["refused", "due_at"], name="sqlqueue_scheduled_due"),
                    models.Index(fields=["topic", "partition_key"], name="sqlqueue_scheduled_key"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "message_id", "partition_key"), name="sqlqueue_scheduled_id"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("message_id", ""), _negated=True), name="sqlqueue_scheduled_id_not_empty"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SubscriberHeartbeat",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscriber", ExactField(max_length=120, verbose_name="subscriber")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("host", UnicodeField(db_default="", max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(db_default=0, verbose_name="process id")),
                ("address", UnicodeField(db_default="", max_length=100, verbose_name="address")),
                ("activity", UnicodeField(db_default="", max_length=200, verbose_name="activity")),
                (
                    "failing",
                    UnicodeField(
                        db_default="",
                        help_text="background tasks of it that fail again and again",
                        max_length=200,
                        verbose_name="failing tasks",
                    ),
                ),
                (
                    "horizon",
                    models.BigIntegerField(db_default=0, help_text="as far as it knows", verbose_name="horizon"),
                ),
                ("version", ExactField(db_default="", help_text="of sqlqueue", max_length=40, verbose_name="version")),
                (
                    "server",
                    ExactField(
                        db_default="",
                        help_text="the identity of the server that it writes to",
                        max_length=100,
                        verbose_name="database server",
                    ),
                ),
                (
                    "serves",
                    ExactField(
                        db_default="",
                        help_text="a digest of all that it serves, in one of its rows",
                        max_length=40,
                        verbose_name="serves",
                    ),
                ),
                (
                    "runs_until",
                    models.DateTimeField(
                        help_text="the limit of what runs; empty: nothing runs", null=True, verbose_name="runs until"
                    ),
                ),
                (
                    "progressed_at",
                    models.DateTimeField(
                        help_text="when a message was settled, or the watermark moved",
                        null=True,
                        verbose_name="last progress",
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="started at")),
                ("beat_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="last beat")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
                (
                    "exit_status",
                    models.SmallIntegerField(
                        help_text="of a process that died; -9: signal 9", null=True, verbose_name="exit status"
                    ),
                ),
                (
                    "restart_at",
                    models.DateTimeField(
                        help_text="when a successor is started", null=True, verbose_name="successor at"
                    ),
                ),
            ],
            options={
                "verbose_name": "subscriber",
                "verbose_name_plural": "subscribers",
                "db_table": "sqlqueue_subscriber_heartbeat",
                "indexes": [
                    models.Index(fields=["subscriber"], name="sqlqueue_heartbeat_beat"),
                    models.Index(fields=["serves"], name="sqlqueue_heartbeat_serves"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "subscriber"), name="sqlqueue_heartbeat_subscriber"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Topic",
            fields=[
                ("name", ExactField(max_length=104, primary_key=True, serialize=False, verbose_name="name")),
                ("partitions", models.IntegerField(verbose_name="partitions")),
                ("priorities", models.IntegerField(db_default=1, verbose_name="priorities")),
                (
                    "retention",
                    models.FloatField(help_text="seconds; empty: for ever", null=True, verbose_name="retention"),
                ),
                ("history", ExactField(db_default="failures", max_length=10, verbose_name="history")),
                ("retention_overridden", models.BooleanField(db_default=False, verbose_name="retention overridden")),
                ("history_overridden", models.BooleanField(db_default=False, verbose_name="history overridden")),
                ("paused", models.BooleanField(db_default=False, verbose_name="paused")),
                (
                    "purged_to",
                    models.BigIntegerField(
                        db_default=0,
                        help_text="up to this offset nothing is retained that no group needs",
                        verbose_name="purged to",
                    ),
                ),
                (
                    "collected_to",
                    models.BigIntegerField(
                        db_default=0, help_text="the highest offset that was collected", verbose_name="collected to"
                    ),
                ),
                (
                    "databases",
                    ExactField(
                        db_default="",
                        help_text="over which its keys are spread; empty: this one alone",
                        max_length=2000,
                        verbose_name="databases",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="created at")),
            ],
            options={
                "verbose_name": "topic",
                "verbose_name_plural": "topics",
                "db_table": "sqlqueue_topic",
                "permissions": [("pause_topic", "Can pause and resume topics"), ("purge_topic", "Can purge topics")],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("sqlqueue.message",),
        ),
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("sqlqueue.topic",),
        ),
        migrations.CreateModel(
            name="UniqueMessage",
            fields=[
                ("digest", ExactField(max_length=64, primary_key=True, serialize=False, verbose_name="digest")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", ExactField(max_length=255, verbose_name="key")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
                ("published_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="published at")),
            ],
            options={
                "db_table": "sqlqueue_unique_message",
            },
        ),
    ]
