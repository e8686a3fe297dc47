"""Costs from a file of measurements.

Three forms are read:

- CSV with the header ``kind,batch,tokens,seconds``. ``decode`` rows are decode steps: requests in
  the batch, their context summed, seconds. ``prefill`` rows are prefill batches: tokens computed,
  seconds; their ``batch`` may be empty.
- JSON with the same rows in lists, and what a row cannot say: ``{"kv_capacity": ...,
  "kv_bytes_per_token": ..., "swap_bytes_per_s": ..., "decode": [{"batch": ..., "context_tokens":
  ..., "seconds": ...}, ...], "prefill": [{"tokens": ..., "seconds": ...}, ...]}``.
- What ``topas bench-engine --json`` writes: it has been fitted already.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from topas.errors import ConfigError
from topas.sim.checks import file_errors
from topas.sim.cost.fit import DecodeRow, MeasuredCosts, PrefillRow, fit_rows
from topas.sim.cost.linear import EngineCosts

__all__ = ["load_costs"]

_HEADER = ("kind", "batch", "tokens", "seconds")
_ERRORS_SHOWN = 5
_NOT_FITTED = ("kv_capacity", "kv_bytes_per_token", "swap_bytes_per_s")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Decode(_Strict):
    batch: int = Field(ge=1)
    context_tokens: int = Field(ge=0)
    seconds: float = Field(gt=0, allow_inf_nan=False)


class _Prefill(_Strict):
    tokens: int = Field(ge=1)
    seconds: float = Field(gt=0, allow_inf_nan=False)


class _Measurements(_Strict):
    """Rows, and the costs that are not fitted; those are checked by :class:`EngineCosts`."""

    kv_capacity: int | None = None
    kv_bytes_per_token: float | None = None
    swap_bytes_per_s: float | None = None
    decode: list[_Decode]
    prefill: list[_Prefill]


class _Fitted(BaseModel):
    """What the calibration of ``topas bench-engine`` found."""

    model_config = ConfigDict(strict=True, frozen=True)

    costs: dict[str, int | float]
    batches: int
    requests: int
    prefill_error: float
    decode_error: float


def load_costs(
    path: str | Path, *, base: EngineCosts | None = None, kv_capacity: int | None = None
) -> MeasuredCosts:
    """Read a file of measurements and fit the costs to it.

    Parameters
    ----------
    path : str or Path
        CSV, or JSON (by its ending ``.json``).
    base : EngineCosts, optional
        Has the KV capacity and the costs of copies where the file has none.
    kv_capacity : int, optional
        KV pool, tokens; before that of the file and of ``base``.

    Raises
    ------
    ConfigError
        The file cannot be read, a row is wrong, rows are missing, or a cost that is not fitted is
        nowhere given; the message names the file and the field.
    """
    file = Path(path)
    with file_errors(f"costs: {file}"):
        text = file.read_text(encoding="utf-8")
    try:
        return _parse(text, file.suffix.casefold() == ".json", base, kv_capacity)
    except ValidationError as error:
        raise ConfigError(f"costs: {file}: {_reasons(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"costs: {file}: {error}") from None


def _parse(
    text: str, is_json: bool, base: EngineCosts | None, kv_capacity: int | None
) -> MeasuredCosts:
    found = _json(text) if is_json else _csv_rows(text)
    if "calibration" in found:
        return _fitted(found["calibration"], kv_capacity)
    rows = _Measurements.model_validate(found)
    given = {name: getattr(rows, name) for name in _NOT_FITTED}
    given["kv_capacity"] = given["kv_capacity"] if kv_capacity is None else kv_capacity
    given = {name: value for name, value in given.items() if value is not None}
    missing = [name for name in _NOT_FITTED if name not in given]
    if base is None and missing:
        raise ConfigError(
            f"{', '.join(missing)}: neither in the file nor given by a GPU and a model"
        )
    return fit_rows(
        [DecodeRow(row.batch, row.context_tokens, row.seconds) for row in rows.decode],
        [PrefillRow(row.tokens, row.seconds) for row in rows.prefill],
        replace(base or EngineCosts(), **given),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("must be a JSON object with the lists 'decode' and 'prefill'")
    return found


def _fitted(calibration: Any, kv_capacity: int | None) -> MeasuredCosts:
    """The costs in a report of ``topas bench-engine``."""
    if not isinstance(calibration, dict) or "fit" not in calibration:
        reason = calibration.get("error") if isinstance(calibration, dict) else None
        raise ConfigError(f"calibration: has no fit: {reason or 'it is not there'}")
    fit = _Fitted.model_validate(calibration["fit"])
    fields: dict[str, Any] = dict(fit.costs)
    if kv_capacity is not None:
        fields["kv_capacity"] = kv_capacity
    try:
        costs = EngineCosts(**fields)
    except TypeError as error:
        raise ConfigError(f"calibration.fit.costs: {error}") from None
    return MeasuredCosts(
        costs=costs,
        prefill_rows=fit.batches,
        decode_rows=fit.requests,
        prefill_error=fit.prefill_error,
        decode_error=fit.decode_error,
    )


def _csv_rows(text: str) -> dict[str, Any]:
    """The rows of a CSV file in the form of the JSON one."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    names = tuple(reader.fieldnames or ())
    if set(names) != set(_HEADER):
        raise ConfigError(f"the header must be {','.join(_HEADER)}, got {','.join(names)}")
    found: dict[str, list[dict[str, Any]]] = {"decode": [], "prefill": []}
    try:
        for row in reader:
            found[_kind(row)].append(_csv_row(row))
    except ValidationError as error:
        raise ConfigError(f"line {reader.line_num}: {_reasons(error)}") from None
    except (ConfigError, csv.Error) as error:
        raise ConfigError(f"line {reader.line_num}: {error}") from None
    return found


def _kind(row: dict[str, Any]) -> str:
    kind = row["kind"]
    if kind not in ("decode", "prefill"):
        raise ConfigError(f"kind: must be decode or prefill, got {kind!r}")
    return str(kind)


def _csv_row(row: dict[str, Any]) -> dict[str, Any]:
    seconds = _number(row, "seconds", float)
    if row["kind"] == "prefill":
        values = {"tokens": _number(row, "tokens", int), "seconds": seconds}
        return _Prefill.model_validate(values).model_dump()
    values = {
        "batch": _number(row, "batch", int),
        "context_tokens": _number(row, "tokens", int),
        "seconds": seconds,
    }
    return _Decode.model_validate(values).model_dump()


def _number(row: dict[str, Any], name: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(row[name])
    except (TypeError, ValueError):
        what = "an integer" if kind is int else "a number"
        raise ConfigError(f"{name}: must be {what}, got {row[name]!r}") from None


def _reasons(error: ValidationError) -> str:
    """The first errors with the path of each field."""
    errors = error.errors(include_url=False)
    shown = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}, got {item['input']!r:.60}"
        for item in errors[:_ERRORS_SHOWN]
    ]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
