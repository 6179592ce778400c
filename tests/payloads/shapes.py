"""One order in every way that Python writes it down."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TypedDict

import attrs
import msgspec
import pydantic


@dataclass
class Line:
    sku: str
    count: int
    price: Decimal = Decimal(0)


@dataclass
class OrderPlaced:
    number: int
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.number == 13:
            raise LookupError("no order has this number")


@dataclass
class OrderPlaced2(OrderPlaced):
    """The same, of another name."""


class LineDict(TypedDict):
    sku: str
    count: int


class OrderDict(TypedDict):
    number: int
    placed: datetime
    lines: list[LineDict]


@attrs.define
class AttrsLine:
    sku: str
    count: int


@attrs.define
class AttrsOrder:
    number: int
    placed: datetime
    lines: list[AttrsLine]


class ModelLine(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(gt=0)


class ModelOrder(pydantic.BaseModel):
    model_config = {"strict": True}

    number: int
    placed: datetime
    lines: list[ModelLine]


@dataclass
class Mixed:
    number: int
    placed: datetime
    lines: list[ModelLine]


class StructLine(msgspec.Struct):
    sku: str
    count: int


class StructOrder(msgspec.Struct):
    number: int
    placed: datetime
    lines: list[StructLine]


class Unknown:
    pass


@dataclass
class WithUnknown:
    found: list[Unknown]


@pydantic.dataclasses.dataclass
class ModelDataclass:
    number: int


class AliasedModel(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
