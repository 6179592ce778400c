"""The pages for people, in Django's admin: one file a model or page. They parse, call the verbs, and show."""

from django.contrib.admin import AdminSite
from django.contrib.admin import site as default_site

from sqlqueue.admin.blocked_ranges import BlockedRangeAdmin
from sqlqueue.admin.consumer_groups import ConsumerGroupAdmin
from sqlqueue.admin.delivery_states import DeliveryStateAdmin
from sqlqueue.admin.leases import LeaseAdmin
from sqlqueue.admin.messages import MessageAdmin
from sqlqueue.admin.offsets import OffsetAdmin
from sqlqueue.admin.overview import OverviewAdmin
from sqlqueue.admin.receipts import ReceiptAdmin
from sqlqueue.admin.replays import ReplayAdmin
from sqlqueue.admin.scheduled_messages import ScheduledMessageAdmin
from sqlqueue.admin.subscribers import SubscriberAdmin
from sqlqueue.admin.topics import TopicAdmin

__all__ = [
    "BlockedRangeAdmin",
    "ConsumerGroupAdmin",
    "DeliveryStateAdmin",
    "LeaseAdmin",
    "MessageAdmin",
    "OffsetAdmin",
    "OverviewAdmin",
    "ReceiptAdmin",
    "ReplayAdmin",
    "ScheduledMessageAdmin",
    "SubscriberAdmin",
    "TopicAdmin",
    "register",
]


def register(site: AdminSite) -> None:
    """Register every page with an admin site of the project's own, beside the default one."""
    for model, page in default_site._registry.items():
        if model._meta.app_label == "sqlqueue" and not site.is_registered(model):
            site.register(model, type(page))
