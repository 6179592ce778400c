"""An id counts for its topic and key: in the log whatever the partition, and in the schedule from the beginning.

MySQL has no transaction for it: run again, it goes on where it was. There the log's index is replaced by one statement,
beside which publishers go on.
"""

from typing import Any

from django.core.management.base import CommandError
from django.db import Error, migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration

OF_LOG = "sqlqueue_message_id"
OF_SCHEDULE = "sqlqueue_scheduled_id"
NOT_EMPTY = "sqlqueue_scheduled_id_not_empty"
FORMER, SCOPE = ("topic", "partition", "message_id"), ("message_id", "topic", "partition_key")
SCHEDULED = ("topic", "message_id", "partition_key")
TRIES = 5  # publishers of the former version may schedule an id twice at any moment
REPEATED = "another message of this topic, key and id ({id}) is scheduled: give it another id, or delete it"


def look(apps: Any, schema_editor: Any) -> None:
    refuse_if_repeated(apps, schema_editor, SCOPE)


def look_back(apps: Any, schema_editor: Any) -> None:
    refuse_if_repeated(apps, schema_editor, FORMER)


def refuse_if_repeated(apps: Any, schema_editor: Any, fields: tuple[str, ...]) -> None:
    """Raise CommandError, before anything is changed, if the log has what these columns are not unique for."""
    model = apps.get_model("sqlqueue", "Message")
    if columns(schema_editor, model, OF_LOG) == list(fields):
        return
    messages = model.objects.using(schema_editor.connection.alias)
    repeated = messages.values(*fields).annotate(first=models.Min("offset"), last=models.Max("offset"))
    found = list(repeated.filter(first__lt=models.F("last")).order_by().values_list("topic", "message_id", "first")[:3])
    if found:
        some = "; ".join(f"topic {topic}, id {id}, first at offset {first}" for topic, id, first in found)
        raise CommandError(
            f"the log has messages that are one by {', '.join(fields)} ({some}). Nothing was changed: delete those that "
            "are not wanted, or wait until they are collected, and migrate again."
        )


def change_log(apps: Any, schema_editor: Any) -> None:
    replace(apps, schema_editor, SCOPE)


def change_log_back(apps: Any, schema_editor: Any) -> None:
    replace(apps, schema_editor, FORMER)


def replace(apps: Any, schema_editor: Any, fields: tuple[str, ...]) -> None:
    """Let the log's unique index have these columns."""
    model = apps.get_model("sqlqueue", "Message")
    present = columns(schema_editor, model, OF_LOG)
    if present == list(fields):
        return
    if schema_editor.connection.vendor == "mysql":
        table = f"`{model._meta.db_table}`"
        named = ", ".join(f"`{field}`" for field in fields)
        drop = f"DROP INDEX `{OF_LOG}`, " if present else ""
        schema_editor.execute(f"ALTER TABLE {table} {drop}ADD UNIQUE INDEX `{OF_LOG}` ({named})")
        return
    if present and schema_editor.connection.vendor != "sqlite":
        schema_editor.remove_constraint(model, models.UniqueConstraint(fields=present, name=OF_LOG))
    add(schema_editor, model, models.UniqueConstraint(fields=fields, name=OF_LOG))


def change_schedule(apps: Any, schema_editor: Any) -> None:
    """Let ids be unique in the schedule. Of messages that have one in common, the log would take the first to be due
    and drop the others: these are refused, for a person to look at."""
    model = apps.get_model("sqlqueue", "ScheduledMessage")
    for left in reversed(range(TRIES)):
        refuse_repeated(model.objects.using(schema_editor.connection.alias))
        try:
            if columns(schema_editor, model, OF_SCHEDULE) is None:
                add(schema_editor, model, models.UniqueConstraint(fields=SCHEDULED, name=OF_SCHEDULE))
            if columns(schema_editor, model, NOT_EMPTY) is None:
                add(schema_editor, model, models.CheckConstraint(condition=~models.Q(message_id=""), name=NOT_EMPTY))
            return
        except Error:
            if not left or schema_editor.connection.vendor != "mysql":
                raise


def refuse_repeated(messages: Any) -> None:
    messages.filter(message_id="").update(message_id=None)
    repeated = (
        messages.exclude(message_id=None).values(*SCHEDULED).annotate(count=models.Count("id")).filter(count__gt=1)
    )
    for found in list(repeated.order_by()):
        count = found.pop("count")
        same = list(messages.filter(**found).order_by("refused", "due_at", "id").values_list("id", flat=True)[:count])
        reason = REPEATED.format(id=found["message_id"])
        messages.filter(id__in=same[1:]).update(message_id=None, refused=True, refusal=reason)


def change_schedule_back(apps: Any, schema_editor: Any) -> None:
    model = apps.get_model("sqlqueue", "ScheduledMessage")
    for constraint in model._meta.constraints:
        if columns(schema_editor, model, constraint.name) is not None:
            model._meta.constraints = [one for one in model._meta.constraints if one is not constraint]
            schema_editor.remove_constraint(model, constraint)
    model.objects.using(schema_editor.connection.alias).filter(message_id=None).update(message_id="")


def add(schema_editor: Any, model: Any, constraint: Any) -> None:
    """Add a constraint. SQLite rebuilds the table, with what the model says, and without what it does not."""
    others = [one for one in model._meta.constraints if one.name != constraint.name]
    model._meta.constraints = [*others, constraint]
    schema_editor.add_constraint(model, constraint)


def columns(schema_editor: Any, model: Any, name: str) -> list[str] | None:
    """Return the columns of a constraint that is there."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, model._meta.db_table).get(name)
    return None if found is None else list(found["columns"])


class AlterExactField(migrations.AlterField):
    """AlterField, in one statement on MySQL: Django's would lose the column's collation where it allows NULL."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django's; backwards it is the same, between the other states."""
        if schema_editor.connection.vendor != "mysql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        field = model._meta.get_field(self.name)
        definition, values = schema_editor.column_sql(model, field)
        if not field.null:
            former = from_state.apps.get_model(app_label, self.model_name).objects
            former.using(schema_editor.connection.alias).filter(**{self.name: None}).update(**{self.name: ""})
        schema_editor.execute(f"ALTER TABLE `{model._meta.db_table}` MODIFY `{field.column}` {definition}", values)


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0009_failing_tasks"),
    ]

    operations = [
        migrations.RunPython(look, migrations.RunPython.noop, atomic=False),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint(model_name="message", name=OF_LOG),
                migrations.AddConstraint(
                    model_name="message", constraint=models.UniqueConstraint(fields=SCOPE, name=OF_LOG)
                ),
            ],
        ),
        migrations.RunPython(change_log, change_log_back, atomic=False),
        AlterExactField(
            model_name="scheduledmessage",
            name="message_id",
            field=sqlqueue.database.fields.ExactField(  # type: ignore[misc]
                help_text="empty: a fresh one when it is due", max_length=255, null=True, verbose_name="id"
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddConstraint(
                    model_name="scheduledmessage",
                    constraint=models.UniqueConstraint(fields=SCHEDULED, name=OF_SCHEDULE),
                ),
                migrations.AddConstraint(
                    model_name="scheduledmessage",
                    constraint=models.CheckConstraint(condition=~models.Q(message_id=""), name=NOT_EMPTY),
                ),
            ],
        ),
        migrations.RunPython(change_schedule, change_schedule_back, atomic=False),
        # The last one is the first to be undone.
        migrations.RunPython(migrations.RunPython.noop, look_back, atomic=False),
    ]
