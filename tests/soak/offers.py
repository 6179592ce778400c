"""Whether what was told of named messages can all be true, and whether what came of them is what was told.

The acts on one name are in no order if they overlap in time; those that do not are. So a message is only said to be
missing, or to be there wrongly, if that follows from acts that do not overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.soak.job_records import CREATED, IGNORED, NEVER, UPDATED, Jobs, Offer
from tests.soak.workload import NAMED

NOW = ("publish", "replace-now")  # acts that do not schedule
IN_TIME = 0.2  # seconds before it is due, in which a cancellation has still to come in time


def wrong_offers(jobs: Jobs) -> Iterator[str]:
    """Yield what is wrong with named messages."""
    values: dict[str, list[int]] = defaultdict(list)
    for entry in jobs.log:
        if entry.topic == NAMED:
            values[entry.id].append(entry.payload["value"])
    by_name: dict[str, list[Offer]] = defaultdict(list)
    for offer in jobs.offers:
        by_name[offer.name].append(offer)
    for name in by_name.keys() | values.keys() | jobs.values.keys():
        of_name, came = by_name[name], values[name]
        if len(came) > 1:
            yield f"{name} is in the log {len(came)} times"
        if jobs.values.get(name, set()) - set(came):
            yield f"{name}: handlers were given {jobs.values[name]}, and the log has {came}"
        for value in came:
            yield from came_wrongly(name, value, of_name)
        if not came and (lost := must_come(of_name)):
            yield f"{name} is not in the log, and was told to be {lost.told}: {of_name}"
        yield from told_wrongly(name, of_name)


def came_wrongly(name: str, value: int, offers: Sequence[Offer]) -> Iterator[str]:
    """Yield why a value must not be in the log."""
    own = next((offer for offer in offers if offer.number == value and offer.what != "cancel"), None)
    if own is None or own.back or not (own.stored or own.in_doubt):
        yield f"{name} came with {value}, which was {own and (own.told or 'taken back')}"
        return
    if own.in_doubt:
        return
    for other in offers:
        if other.began > own.ended and (other.stored or other.told is True):
            done = "cancelled" if other.told is True else f"{other.told} with {other.number}"
            yield f"{name} came with {value}, and was {done} after that"


def must_come(offers: Sequence[Offer]) -> Offer | None:
    """Return an offer that nothing can have cancelled: one that began after every cancellation that may have been
    done."""
    cancelled = max((offer.ended for offer in offers if offer.may_remove), default=0.0)
    return next((offer for offer in offers if offer.stored and offer.began > cancelled), None)


def told_wrongly(name: str, offers: Sequence[Offer]) -> Iterator[str]:
    """Yield what cannot have been told."""
    created = [offer for offer in offers if offer.told == CREATED]
    may_create = len(created) + sum(offer.in_doubt and offer.what != "cancel" for offer in offers)
    cancelled = sum(offer.told is True for offer in offers)
    # Of two transactions that overlap, one that schedules and one that publishes now, both are told "created".
    twice = sum(offer.what in NOW for offer in created)
    if len(created) > 1 + twice + sum(offer.may_remove for offer in offers):
        yield f"{name} was created {len(created)} times: {offers}"
    if cancelled > may_create:
        yield f"{name} was cancelled {cancelled} times, and created {may_create} times at most: {offers}"
    for offer in offers:
        if offer.told in (IGNORED, UPDATED) and not any(was_there(other, offer) for other in offers):
            yield f"{name} was told to be {offer.told} at {offer.began:.3f}, and nothing was there: {offers}"
        if offer.what == "cancel" and offer.told is False and (there := was_in_time(offer, offers)):
            yield f"{name} could not be cancelled at {offer.began:.3f}, and {there} was scheduled"


def was_there(other: Offer, offer: Offer) -> bool:
    """Tell whether another act may have put there what an offer has met."""
    stored = other.told == CREATED or (other.in_doubt and other.what != "cancel")
    return other is not offer and stored and other.began < offer.ended


def was_in_time(cancellation: Offer, offers: Sequence[Offer]) -> Offer | None:
    """Return what a cancellation must have found on the schedule: of which it was told before, which was not due yet,
    and which nothing else can have removed."""
    for offer in offers:
        due = offer.began + offer.delay
        if not offer.stored or offer.what in NOW or not offer.ended < cancellation.began:
            continue
        others = (each for each in offers if each is not offer and each is not cancellation and not each.back)
        changed = (each for each in others if each.told not in (IGNORED, False) and each.ended > offer.began)
        if cancellation.ended < min(due - IN_TIME, NEVER) and not any(
            each.began < cancellation.ended for each in changed
        ):
            return offer
    return None
