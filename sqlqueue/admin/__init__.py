"""The operators' pages in Django's admin, one module for each model or page: they parse a request, call operations and
show stats. Only a project's own admin site imports it, for `register`."""

from django.contrib.admin import AdminSite
from django.contrib.admin import site as default_site

from sqlqueue.admin.batches import BatchAdmin
from sqlqueue.admin.blocked_ranges import BlockedRangeAdmin
from sqlqueue.admin.collected_messages import CollectedMessageAdmin
from sqlqueue.admin.consumer_groups import ConsumerGroupAdmin
from sqlqueue.admin.database_site import DatabaseSite
from sqlqueue.admin.delivery_states import DeliveryStateAdmin
from sqlqueue.admin.leases import LeaseAdmin
from sqlqueue.admin.messages import MessageAdmin
from sqlqueue.admin.offsets import OffsetAdmin
from sqlqueue.admin.overview import OverviewAdmin
from sqlqueue.admin.periodic_schedules import PeriodicScheduleAdmin
from sqlqueue.admin.receipts import ReceiptAdmin
from sqlqueue.admin.requests import RequestAdmin
from sqlqueue.admin.scheduled_messages import ScheduledMessageAdmin
from sqlqueue.admin.subscribers import SubscriberAdmin
from sqlqueue.admin.topics import TopicAdmin
from sqlqueue.database.tables import is_beside_the_log

__all__ = [
    "BatchAdmin",
    "BlockedRangeAdmin",
    "CollectedMessageAdmin",
    "ConsumerGroupAdmin",
    "DeliveryStateAdmin",
    "LeaseAdmin",
    "MessageAdmin",
    "OffsetAdmin",
    "OverviewAdmin",
    "PeriodicScheduleAdmin",
    "ReceiptAdmin",
    "RequestAdmin",
    "ScheduledMessageAdmin",
    "SubscriberAdmin",
    "TopicAdmin",
    "database_site",
    "register",
]


def register(site: AdminSite) -> None:
    """Register every page with an admin site of the project's own, beside the default one."""
    for model, model_admin in default_site._registry.items():
        if is_beside_the_log(model._meta.app_label) and not site.is_registered(model):
            site.register(model, type(model_admin))


def database_site(database: str) -> DatabaseSite:
    """Return an admin site with every page over one log, for the urls of a project: `path("databases/b/",
    database_site("b").urls)`. The other sites show DATABASE's database. Raises ConfigurationError if there is no such
    database."""
    site = DatabaseSite(database)
    register(site)
    return site
