"""Work items in the admin: lists, the page of one with its form, permissions for each topic, the audit trail."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Any, Literal
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db.models import JSONField, Value
from django.forms import Textarea
from django.test import Client
from django.utils import timezone

from sqlqueue import publish
from sqlqueue.contrib.people import work, work_on
from sqlqueue.contrib.people.admin import operations, work_items
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from sqlqueue.models import Message
from tests.admin.test_overview import page, words
from tests.contrib.people import test_work

pytestmark = pytest.mark.django_db(transaction=True)
MINE = "/admin/sqlqueue_people/mywork/"
LIST = "/admin/sqlqueue_people/workitem/"
Staff = Callable[..., Client]


@dataclass
class Refund:
    number: str
    amount: int


@dataclass
class Decision:
    """What is decided about a refund."""

    number: str
    amount: float
    approved: bool
    how: Literal["card", "bank"]
    paid_on: date | None = None
    lines: list[int] | None = None
    note: str = ""


class How(Enum):
    CARD = "card"
    BANK = "bank"


@dataclass
class Everything:
    """A field of each kind that a decision may have."""

    text: str
    empty: str
    lines: list[int]
    level: Literal[1, 2]
    missing: Literal["a", "b"]
    nothing: int | None
    how: How | None = None
    sure: bool | None = None
    told: bool = True


@pytest.fixture(autouse=True)
def _options(settings: Any, declared: Any) -> None:
    settings.SQLQUEUE = {
        "TOPICS": {
            "refunds": {"payload_type": Refund},
            "decided": {"payload_type": Decision},
            "plain": {},
            "typed": {"payload_type": Refund},
            "free": {},
            "odd": {},
            "everything": {"payload_type": Everything},
        }
    }
    work_on("refunds", decisions="decided", teams=["cash", "boss"])
    work_on("plain", decisions="free")
    work_on("odd", decisions="everything")


def item_of(topic: str = "plain", **values: Any) -> WorkItem:
    given = {"message_offset": WorkItem.objects.count() + 1, "payload": {"number": "r-1", "amount": 700}}
    return test_work.item_of(topic, **{**given, "reason": "over <500>", **values})


def url(item: WorkItem) -> str:
    return f"{LIST}{item.pk}/change/"


def operation(item: WorkItem, name: str, version: object) -> str:
    return f"{LIST}{item.pk}/operation/{name}/?version={version}"


def do(client: Client, item: WorkItem, name: str, **values: Any) -> Any:
    return client.post(operation(item, name, WorkItem.objects.get(pk=item.pk).version), values)


def decision(client: Client, item: WorkItem) -> Any:
    """Return the form in which an item is decided."""
    return client.get(url(item)).context["forms"]["Decide"]["form"]


def name_of(client: Client) -> str:
    return User.objects.get(pk=client.session["_auth_user_id"]).username


def buttons(html: str) -> list[str]:
    return re.findall(r'formaction="[^"]*/operation/([^/]+)/', html)


def test_a_whole_case(staff: Staff) -> None:
    worker, boss = staff("work_on_workitem"), staff("review_workitem", "assign_workitem")
    item = item_of(form={"amount": 500})
    assert do(worker, item, "take").status_code == 302
    html = page(worker, url(item))
    assert "over &lt;500&gt;" in html
    assert do(worker, item, "submit", payload='{"amount": 600}', comment="seems right").status_code == 302
    assert do(boss, item, "send-back", comment="too much").status_code == 302
    assert do(worker, item, "finish", payload='{"amount": 500}').status_code == 302
    assert Message.objects.get().payload == {"amount": 500}
    html = words(page(boss, url(item)))
    assert html.count("{ &quot;amount&quot;: 600 }") == 1, "what was submitted first, in the audit trail"
    for told in ("seems right", "too much", "sent back", "review asked for", "done", name_of(worker), name_of(boss)):
        assert told in html
    assert buttons(page(boss, url(item))) == ["comment"]


@pytest.mark.once
def test_a_user_whose_name_is_a_uuid_works_too(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid4()
    monkeypatch.setattr(User, "get_username", lambda user: name)
    item = item_of()
    do(admin_client, item, "take")
    do(admin_client, item, "comment", comment="mine")
    item.refresh_from_db()
    assert item.assignee == str(name)
    assert {event.made_by for event in WorkItemEvent.objects.all()} == {str(name)}
    assert str(name) in page(admin_client, url(item))


def test_the_pages_of_an_item_and_of_its_message_lead_to_each_other(staff: Staff) -> None:
    offset = publish("plain", {"amount": 700}).offset
    item, closed = item_of(message_offset=offset), item_of("refunds", message_offset=offset, consumer_group="mail")
    address = f"/admin/sqlqueue/message/{offset}/change/"
    reader, worker, both = (
        staff(*permissions)
        for permissions in (["view_message"], ["work_on_workitem"], ["view_message", "review_workitem"])
    )
    assert url(item) in page(both, address)
    assert url(closed) not in page(both, address), "its topic has a team"
    assert url(item) not in page(reader, address)
    assert address in page(both, url(item))
    assert address not in page(worker, url(item))
    Message.objects.all().delete()
    assert address not in page(both, url(item))


def test_a_message_says_that_there_are_more_items(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_items, "MOST_ITEMS", 1)
    offset = publish("plain", 1).offset
    older, newer = item_of(message_offset=offset), item_of(message_offset=offset, fencing_token=2)
    html = page(admin_client, f"/admin/sqlqueue/message/{offset}/change/")
    assert url(newer) in html
    assert url(older) not in html
    assert "Older entries are not shown." in html


def test_two_people_on_one_page_do_not_decide_twice(staff: Staff) -> None:
    one, other = staff("work_on_workitem"), staff("work_on_workitem")
    item = item_of()
    seen = operation(item, "finish", 0)
    assert one.post(seen, {"payload": "1"}).status_code == 302
    answer = other.post(seen, {"payload": "2"})
    assert answer.status_code == 200
    assert "has been changed meanwhile" in answer.content.decode()
    assert [message.payload for message in Message.objects.all()] == [1]
    assert WorkItemEvent.objects.count() == 1


class TestForms:
    def test_the_fields_are_those_of_the_decisions_type_filled_from_payload_and_handler(
        self, admin_client: Client
    ) -> None:
        form = decision(admin_client, item_of("refunds", form={"amount": 12.5}))
        assert list(form.fields) == [
            *(f"field-{name}" for name in ("number", "amount", "approved", "how", "paid_on", "lines", "note")),
            "reviewer",
            "comment",
        ]
        assert {name: field.initial for name, field in form.fields.items() if field.initial not in (None, "")} == {
            "field-number": "r-1",
            "field-amount": 12.5,
        }
        required = [name for name, field in form.fields.items() if field.required]
        assert required == ["field-number", "field-amount", "field-how"]

    def test_without_one_they_are_those_of_its_own_topic(self, admin_client: Client) -> None:
        assert list(decision(admin_client, item_of("typed")).fields)[:2] == ["field-number", "field-amount"]

    def test_without_any_it_is_json_that_begins_with_the_payload(self, admin_client: Client, staff: Staff) -> None:
        form = decision(admin_client, item_of(form={"amount": 5}))
        assert form.fields["payload"].initial == {"number": "r-1", "amount": 5}
        html = page(staff("work_on_workitem"), url(item_of(payload="text", form=None)))
        assert re.search(r'<textarea name="payload"[^>]*>\s*&quot;text&quot;</textarea>', html)

    def test_what_is_submitted_fits_the_type(self, admin_client: Client) -> None:
        item = item_of("refunds")
        values = {"field-number": "r-1", "field-amount": "7.5", "field-how": "bank", "field-paid_on": "soon"}
        answer = do(admin_client, item, "finish", **values)
        assert "paid_on" in words(answer.content.decode())
        assert not Message.objects.exists()
        values |= {"field-paid_on": "2026-03-01", "field-lines": "[1, 2]", "field-approved": "on"}
        assert do(admin_client, item, "finish", **values).status_code == 302
        assert Message.objects.get().payload == {
            "number": "r-1",
            "amount": 7.5,
            "approved": True,
            "how": "bank",
            "paid_on": "2026-03-01",
            "lines": [1, 2],
        }

    def test_what_is_not_touched_is_decided_as_it_was(self, admin_client: Client) -> None:
        given = {"text": "a\nb", "empty": "", "lines": [], "level": 2, "nothing": None, "how": "bank", "sure": None}
        item = item_of("odd", payload=given)
        fields = decision(admin_client, item)
        sent = {name: fields[name].value() for name in fields.fields if name not in ("reviewer", "comment")}
        assert isinstance(fields.fields["field-text"].widget, Textarea), "an input has no lines"
        sent = {name: value for name, value in sent.items() if value is not None}
        answer = do(admin_client, item, "finish", **{**sent, "field-text": "a\r\nb"})
        assert "field-missing_error" in answer.content.decode(), "no choice is made unsaid"
        assert (
            do(admin_client, item, "finish", **{**sent, "field-text": "a\r\nb", "field-missing": "b"}).status_code
            == 302
        )
        assert Message.objects.get().payload == {
            **{name: value for name, value in given.items() if name != "sure"},
            "missing": "b",
            "told": True,
        }

    @pytest.mark.once
    @pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"a": "\\ud800"}'])
    def test_json_that_cannot_be_read_is_said(self, admin_client: Client, text: str) -> None:
        answer = do(admin_client, item_of(), "finish", payload=text)
        assert "Enter a valid JSON" in answer.content.decode()

    @pytest.mark.parametrize("wrong", [{"field-how": "cash"}, {"field-amount": "much"}, {"field-number": ""}])
    def test_what_does_not_is_said_at_its_field(self, admin_client: Client, wrong: dict[str, str]) -> None:
        item = item_of("refunds")
        values = {"field-number": "r-1", "field-amount": "7.5", "field-how": "bank", **wrong}
        answer = do(admin_client, item, "finish", **values)
        assert answer.status_code == 200
        assert 'class="errorlist"' in answer.content.decode()
        assert WorkItem.objects.get().state == "open"

    @pytest.mark.parametrize(
        ("deed", "values", "why"),
        [
            ("assign", {"user": "nobody"}, "There is no user nobody"),
            ("submit", {"reviewer": "nobody", "payload": "1"}, "There is no user nobody"),
            ("later", {"until": "2020-01-01T00:00"}, "in the future only"),
            ("later", {"until": ""}, "required"),
            ("comment", {"comment": " "}, "required"),
            ("comment", {"comment": "x" * 10_001}, "at most 10000"),
            ("finish", {"payload": "{"}, "valid JSON"),
        ],
    )
    def test_wrong_values_are_refused(self, admin_client: Client, deed: str, values: dict[str, str], why: str) -> None:
        answer = do(admin_client, item_of(), deed, **values)
        assert why in answer.content.decode()
        assert not WorkItemEvent.objects.exists()


class TestPermissions:
    def test_nobody_sees_items_without_a_permission(self, staff: Staff) -> None:
        item, client = item_of(), staff("view_message")
        for address in (LIST, MINE, url(item), f"{LIST}{item.pk}/body/"):
            assert client.get(address).status_code == 403
        assert Client().get(url(item)).status_code == 302

    def test_the_team_of_a_topic_alone_sees_its_items(self, staff: Staff) -> None:
        closed, free = item_of("refunds"), item_of("plain")
        client = staff("work_on_workitem")
        assert client.get(url(closed)).status_code == 403
        assert do(client, closed, "finish").status_code == 403
        assert str(closed) not in page(client, MINE)
        assert words(page(client, LIST)).count("plain") == 1
        assert "refunds" not in words(page(client, LIST))
        dead = item_of("refunds_dlq")
        assert client.get(url(dead)).status_code == 403
        assert str(dead) not in page(client, MINE)
        User.objects.get(username=name_of(client)).groups.add(Group.objects.create(name="cash"))
        assert client.get(url(closed)).status_code == 200
        assert client.get(url(dead)).status_code == 200
        assert str(closed) in page(client, MINE)
        assert str(free) in page(client, MINE)

    @pytest.mark.parametrize(
        ("codename", "state", "offered"),
        [
            ("view_workitem", "open", []),
            ("work_on_workitem", "open", ["take", "finish", "submit", "later", "comment"]),
            ("assign_workitem", "open", ["assign", "comment"]),
            ("review_workitem", "review", ["take", "approve", "send-back", "comment"]),
            ("work_on_workitem", "review", ["comment"]),
        ],
    )
    def test_each_sees_the_buttons_of_what_they_may_do(
        self, staff: Staff, codename: str, state: str, offered: list[str]
    ) -> None:
        item = item_of(state=state, author="zoe")
        client = staff("view_workitem", codename) if codename != "view_workitem" else staff(codename)
        assert buttons(page(client, url(item))) == offered
        everything = {"take", "release", "assign", "later", "finish", "submit", "approve", "send-back", "comment"}
        for deed in everything - set(offered) - {"release"}:
            if codename == "work_on_workitem" and state == "review" and deed in ("later", "finish", "submit"):
                continue  # permitted, and refused for its state
            assert do(client, item, deed, user="zoe", comment="x", payload="1").status_code == 403, deed
        assert not WorkItemEvent.objects.exists()

    def test_what_another_has_is_taken_by_those_who_assign(self, staff: Staff) -> None:
        item = item_of(assignee="zoe")
        assert do(staff("work_on_workitem"), item, "take").status_code == 403
        assert do(staff("work_on_workitem"), item, "release").status_code == 403
        boss = staff("work_on_workitem", "assign_workitem")
        assert do(boss, item, "take").status_code == 302
        assert WorkItem.objects.get().assignee == name_of(boss)

    def test_an_item_is_given_to_those_who_may_work_on_it(self, staff: Staff) -> None:
        boss, worker, other = staff("assign_workitem"), staff("work_on_workitem"), staff("view_workitem")
        item = item_of()
        assert "There is no user" in do(boss, item, "assign", user=name_of(other)).content.decode()
        User.objects.filter(username=name_of(worker)).update(is_active=False)
        assert "There is no user" in do(boss, item, "assign", user=name_of(worker)).content.decode()
        User.objects.filter(username=name_of(worker)).update(is_active=True)
        assert do(boss, item, "assign", user=name_of(worker)).status_code == 302
        assert WorkItem.objects.get().assignee == name_of(worker)

    def test_a_user_whose_name_the_database_finds_in_other_letters_is_called_by_their_own(self, staff: Staff) -> None:
        boss, worker = staff("assign_workitem"), staff("work_on_workitem")
        do(boss, item_of(), "assign", user=name_of(worker).upper())  # only MySQL's collations find that
        assert WorkItem.objects.get().assignee in ("", name_of(worker))

    def test_the_permission_is_that_for_the_item_as_it_is(self, staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
        """A guess of the next version, and the boss who assigns the item after its permission was looked at."""
        item, client, plain = item_of(), staff("work_on_workitem"), operations.may_on

        def may_on(*given: Any) -> bool:
            found = plain(*given)
            if not WorkItem.objects.get().assignee:
                work.assign(item.pk, 0, "boss", "zoe")
            return found

        monkeypatch.setattr(operations, "may_on", may_on)
        client.post(operation(item, "take", 1))
        assert WorkItem.objects.get().assignee == "zoe"

    @pytest.mark.parametrize(("name", "version", "status"), [("burn", 0, 404), ("take", "", 400), ("take", -1, 400)])
    def test_a_request_that_is_none_is_refused(
        self, admin_client: Client, name: str, version: object, status: int
    ) -> None:
        assert admin_client.post(operation(item_of(), name, version)).status_code == status

    @pytest.mark.parametrize("address", ["0", "abc", "9" * 30])
    def test_an_item_that_is_not_there(self, admin_client: Client, address: str) -> None:
        assert admin_client.get(f"{LIST}{address}/change/").status_code == 404


class TestOwnWork:
    def sections(self, client: Client) -> dict[str, list[str]]:
        html = page(client, MINE)
        found = re.findall(r'<h2 id="work-(\w+)">.*?</h2>(.*?)</section>', html, re.DOTALL)
        return {name: re.findall(r'/change/">([^<]+)</a>', rest) for name, rest in found}

    def test_it_is_the_users_the_teams_and_what_is_late(self, staff: Staff) -> None:
        client = staff("work_on_workitem")
        me, past = name_of(client), timezone.now() - timedelta(hours=1)
        User.objects.get(username=me).groups.add(Group.objects.create(name="cash"))
        mine, late = item_of(assignee=me), item_of(assignee=me, due_at=past)
        review = item_of(assignee=me, state="review", author="zoe")
        put_off = item_of(assignee=me, deferred_until=timezone.now() + timedelta(hours=1))
        back = item_of(assignee=me, deferred_until=past)
        theirs, free = item_of("refunds", assignee="zoe"), item_of("refunds")
        item_of(assignee="zoe")
        item_of(assignee=me, state="done", due_at=past)
        item_of(assignee="", state="done")
        assert self.sections(client) == {
            "overdue": [str(late)],
            "own": [str(one) for one in (mine, late, back, review)],
            "later": [str(put_off)],
            "team": [str(theirs)],
            "unassigned": [str(free)],
        }

    def test_a_section_says_that_there_are_more(self, admin_client: Client) -> None:
        for _ in range(51):
            item_of()
        assert len(self.sections(admin_client)["unassigned"]) == 50
        assert "The first 50 are shown." in page(admin_client, MINE)


def test_bytes_are_downloaded(admin_client: Client) -> None:
    item = item_of(payload=Value(None, JSONField()), body=b"%PDF", headers={"sqlqueue-content-type": "application/pdf"})
    assert f"{LIST}{item.pk}/body/" in page(admin_client, url(item))
    assert admin_client.get(f"{LIST}{item.pk}/body/").content == b"%PDF"


def test_what_is_long_is_cut_and_says_so(admin_client: Client) -> None:
    item = item_of(payload=["x" * 30_000], reason="y" * 500, state="done")
    for number in range(201):
        work.add_comment(item.pk, "bob", f"comment {number}")
    html = page(admin_client, url(item))
    assert "… and more" in html
    assert "x" * 20_001 not in html
    assert "comment 0<" not in html
    assert "comment 1<" in html
    assert "Older entries are not shown." in html
    assert "y" * 121 not in page(admin_client, LIST)


@pytest.mark.parametrize(("address", "present"), [(LIST, "Work items"), (MINE, "My work")])
def test_the_page_of_ones_own_work_is_the_first_entry_and_marked(
    admin_client: Client, address: str, present: str
) -> None:
    html = page(admin_client, address)
    sidebar = html[html.index('id="nav-sidebar"') :]
    assert re.findall(r'aria-current="page">(.*?)</a>', sidebar) == [present]
    index = page(admin_client, "/admin/sqlqueue_people/")
    assert index.index("My work") < index.index("Work items")
