"""A topic remembers which of its options a person has set, for the settings reach the others from now on.

What is stored and differs from the settings becomes an override, so that no message is deleted, and no receipt left
out, because of the upgrade. Topics that only messages on their way into the log name are stored: they stay declared.
"""

from typing import Any

from django.db import migrations, models

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic
from sqlqueue.database import online_migration
from sqlqueue.exceptions import ConfigurationError


def keep_what_differs(apps: Any, schema_editor: Any) -> None:
    """Mark what a later start of `runconsumers` would change."""
    for topic in apps.get_model("sqlqueue", "Topic").objects.using(schema_editor.connection.alias).iterator():
        options = settings.topic(topic.name)
        topic.history_overridden = topic.history != options.history
        if not topic.name.endswith(DEAD_LETTER_SUFFIX):  # these have no retention, whatever the settings are
            topic.retention_overridden = topic.retention != options.retention
        if topic.history_overridden or topic.retention_overridden:
            topic.save(update_fields=["retention_overridden", "history_overridden"])


def declare_what_is_scheduled(apps: Any, schema_editor: Any) -> None:
    """Store the topics of messages that plain SQL has scheduled: under STRICT_TOPICS they would be refused when due."""
    alias = schema_editor.connection.alias
    topics = apps.get_model("sqlqueue", "Topic").objects.using(alias)
    waiting = apps.get_model("sqlqueue", "ScheduledMessage").objects.using(alias).filter(refused=False)
    names = set(waiting.order_by().values_list("topic", flat=True).distinct())
    for name in sorted(names - set(topics.values_list("name", flat=True))):
        try:
            checked_topic(name)
        except ConfigurationError:
            continue  # it is refused when it is due
        options = settings.topic(name)
        topics.create(
            name=name,
            partitions=options.partitions,
            priorities=options.priorities,
            retention=None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention,
            history=options.history,
        )


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0010_scope_of_ids"),
    ]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="history_overridden",
            field=models.BooleanField(db_default=False, verbose_name="history overridden"),
        ),
        migrations.AddField(
            model_name="topic",
            name="retention_overridden",
            field=models.BooleanField(db_default=False, verbose_name="retention overridden"),
        ),
        migrations.RunPython(keep_what_differs, migrations.RunPython.noop, elidable=False),
        migrations.RunPython(declare_what_is_scheduled, migrations.RunPython.noop, elidable=False),
    ]
