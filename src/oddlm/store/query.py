"""SQL over a store, through DuckDB. Does not import torch."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..versions import STORE
from .disk import MOST_LINE_BYTES
from .files import Head, Store
from .records import DRAWN, SCORES, SPEC, SUMMARY, StoreError

# The columns that are read from each file; DuckDB ignores all others.
_FILES = {
    SPEC: {"schema_version": "INTEGER", "id": "VARCHAR", "problems": "INTEGER", "spec": "JSON"},
    SUMMARY: {
        "schema_version": "INTEGER",
        "id": "VARCHAR",
        "problems": "INTEGER",
        "imported": "VARCHAR",
        "seconds": "DOUBLE",
        "passed": "JSON",
        "diversity": "JSON",
    },
    DRAWN: {
        "schema_version": "INTEGER",
        "problem": "VARCHAR",
        "prompt": "VARCHAR",
        "seed": "BIGINT",
        "nfe": "INTEGER",
        "seconds": "DOUBLE",
        "samples": "",  # a list of _SAMPLE
    },
    SCORES: {
        "schema_version": "INTEGER",
        "problem": "VARCHAR",
        "correct": "BOOLEAN[]",
        "solutions": "INTEGER[]",
        "answers": "VARCHAR[]",
        "details": "VARCHAR[]",
        "diversity": "JSON",
        "seconds": "DOUBLE",
    },
}
_SAMPLE = {"index": "INTEGER", "text": "VARCHAR", "length": "INTEGER", "finish_reason": "VARCHAR"}
_SAMPLE |= {"logprob": "DOUBLE", "tokens": "INTEGER[]"}
WILD = set("*?[")
# Tables that the query does not use are not created, and files that no table needs are not read.
_TABLES = {
    "problems": """
        select drawn.run, drawn.problem, prompt, seed, nfe, drawn.seconds,
               scores.seconds as score_seconds, diversity, len(samples) as n,
               list_count(list_filter(correct, lambda one: one)) as correct
        from drawn left join scores
        on scores.run = drawn.run and scores.problem = drawn.problem""",
    "samples": """
        select drawn.run, drawn.problem, unnest(samples, recursive := true),
               unnest(correct) as correct, unnest(answers) as answer,
               unnest(details) as detail, unnest(solutions) as solution, seed, nfe, drawn.seconds
        from drawn left join scores
        on scores.run = drawn.run and scores.problem = drawn.problem""",
    "runs": """
        select specs.run, spec->>'model' as model, spec->>'task' as task,
               spec->>'protocol' as protocol, try_cast(spec->>'n' as integer) as n,
               try_cast(spec->>'seed' as bigint) as seed,
               spec->'params'->>'objective' as objective,
               try_cast(spec->'params'->>'alpha' as double) as alpha,
               try_cast(spec->'params'->>'temperature' as double) as temperature,
               specs.problems, heads.drawn, heads.scored, heads.complete,
               summaries.seconds, passed, summaries.diversity, spec
        from specs left join summaries on summaries.run = specs.run
        left join heads on heads.run = specs.run""",
}
# Columns named differently from their field, and fields that are always read.
_FIELD = {
    "answer": "answers",
    "detail": "details",
    "solution": "solutions",
    "score_seconds": "seconds",
    "n": "samples",
}
_ALWAYS = {"schema_version", "problem", "samples", "index"}
_READS = {"runs": (SPEC, SUMMARY), "problems": (DRAWN, SCORES), "samples": (DRAWN, SCORES)}
_NAMES = {SPEC: "specs", SUMMARY: "summaries", DRAWN: "drawn", SCORES: "scores"}


@dataclass(frozen=True, slots=True)
class Answer:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def sql(store: Store, query: str) -> Answer:
    """Run a query over the tables runs, problems and samples.

    The columns that it uses are first copied into memory; while the query itself runs, DuckDB can
    neither read nor write files. Unreadable runs are left out, with a warning for each.
    """
    try:
        import duckdb
    except ImportError as error:
        raise StoreError("queries need the extra 'store': pip install 'oddlm[store]'") from error
    if not store.folder.is_dir():
        store.ids()  # raises, with advice
    where = store.folder.absolute()
    if wild := sorted(WILD & set(str(where))):
        raise StoreError(
            f"{where}: DuckDB reads the {wild[0]} in this path as a wildcard; "
            "move the store to query it"
        )
    used = _used(query)
    heads = [] if used == {} else _readable(store)  # e.g. `describe samples` uses no run
    with duckdb.connect(":memory:") as database:
        database.execute("set temp_directory = ''")
        _make(database, "view", where, heads, used)
        database.execute("set enable_external_access = false")
        database.execute("set lock_configuration = true")
        try:
            result = database.execute(query)
            if result is None:
                raise StoreError("the query is empty: `select * from runs` shows all runs")
            names = [column[0] for column in result.description or ()]
            return Answer(tuple(names), tuple(result.fetchall()) if names else ())
        except duckdb.Error as error:
            raise StoreError(str(error).strip()) from error


def _used(query: str) -> dict[str, set[str]] | None:
    """Return the columns that a query scans, by table, or None if that is unknown.

    They are taken from DuckDB's plan of the query on empty tables.
    """
    import duckdb

    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as bare:
        _make(bare, "table", Path(), [], None)
        bare.execute(
            "set disabled_optimizers = 'filter_pushdown,statistics_propagation,empty_result_pullup'"
        )
        try:
            # The columns of a pivot are values, which an empty table lacks.
            if len(duckdb.extract_statements(query)) != 1 or "pivot" in query.lower():
                return None
            left = json.loads(bare.execute(f"explain (format json) {query}").fetchall()[0][1])
        # A wrong query reports its error when it is run.
        except (duckdb.Error, ValueError, LookupError, RecursionError):
            return None
    found: dict[str, set[str]] = {}
    while left:
        node = left.pop()
        left += node.get("children", ())
        if (table := node.get("extra_info", {}).get("Table", "").rpartition(".")[2]) in _TABLES:
            columns = node["extra_info"].get("Projections", ())
            found.setdefault(table, set()).update(
                [columns] if columns and isinstance(columns, str) else columns
            )
    return found


def _make(
    database: Any,
    kind: str,
    where: Path,
    heads: Sequence[Head],
    used: Mapping[str, set[str]] | None,
) -> None:
    """Create the tables that are used, with all their columns.

    Columns that are not used are NULL and not read.
    """
    needed = None
    if used is not None:
        names = {name for columns in used.values() for name in columns}
        needed = _ALWAYS | {_FIELD.get(name, name) for name in names}
    database.execute("create schema stored")
    database.execute(
        "create table stored.heads (run VARCHAR, drawn INTEGER, scored INTEGER, complete BOOLEAN)"
    )
    if heads:
        counts = [(head.id, head.drawn, head.scored, head.complete) for head in heads]
        database.executemany("insert into stored.heads values (?, ?, ?, ?)", counts)
    parts = {"heads": "select * from stored.heads"}
    tables = list(used or _TABLES)
    for file in dict.fromkeys(file for table in tables for file in _READS[table]):
        parts[_NAMES[file]] = _copy(
            database, file, [where / head.id / file for head in heads], needed
        )
    for table in tables:
        inputs = ("heads", *(_NAMES[file] for file in _READS[table]))
        selections = ", ".join(f"{name} as ({parts[name]})" for name in inputs)
        database.execute(f"create {kind} {table} as with {selections} {_TABLES[table]}")


def _readable(store: Store) -> list[Head]:
    """Return the runs whose files can all be read; warn about the others."""
    found = []
    for name in store.ids():
        try:
            if wild := sorted(WILD & set(name)):
                raise StoreError(
                    f"DuckDB reads the {wild[0]} in its name as a wildcard; rename the folder"
                )
            found.append(store.exact_head(name))
        except StoreError as error:
            warnings.warn(f"left out run {name}: {error}", stacklevel=3)
    return found


def _copy(database: Any, file: str, paths: Sequence[Path], needed: set[str] | None) -> str:
    """Load files of one kind into a table, with the run's id.

    Lines that are torn, damaged or of another schema are left out, with a warning. Returns a
    SELECT of all fields, in which those that are not needed are NULL.
    """
    whole = _FILES[file] | ({"samples": _list_of(_SAMPLE)} if file == DRAWN else {})
    kinds = {
        name: kind
        for name, kind in whole.items()
        if needed is None or name in needed or file in (SPEC, SUMMARY)
    }
    if file == DRAWN:
        kinds["samples"] = _list_of(
            {name: kind for name, kind in _SAMPLE.items() if needed is None or name in needed}
        )
    table = f"stored.{_NAMES[file]}"
    declared = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    database.execute(f"create table {table} (run VARCHAR, {declared})")
    present = {str(path): path.stat().st_size for path in paths if path.is_file()}
    present = {path: size for path, size in present.items() if size}
    if present:
        columns = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in kinds.items()) + "}"
        largest = min(max(present.values()), MOST_LINE_BYTES)  # DuckDB buffers twice as much
        database.execute(
            f"insert into {table} select parse_path(filename)[-2], {', '.join(kinds)} "
            f"from read_json(?, columns = {columns}, format = 'newline_delimited', "
            f"filename = true, ignore_errors = true, maximum_object_size = {largest})",
            [list(present)],
        )
    unread = database.execute(f"select count(*) from {table} where schema_version is null")
    if damaged := unread.fetchone()[0]:
        warnings.warn(f"left out {damaged} unfinished or damaged lines of {file}", stacklevel=3)
    other = f"select distinct run, schema_version from {table} where schema_version != {STORE}"
    for run, version in database.execute(other).fetchall():
        warnings.warn(
            f"left out run {run}: {file} has schema {version}; this oddlm reads {STORE}",
            stacklevel=3,
        )
    database.execute(f"delete from {table} where schema_version is distinct from {STORE}")
    fields = [
        f"{name if name in kinds else 'NULL'}::{kind} as {name}" for name, kind in whole.items()
    ]
    return f"select run, {', '.join(fields)} from {table}"


def _list_of(fields: Mapping[str, str]) -> str:
    return f"STRUCT({', '.join(f'{name} {kind}' for name, kind in fields.items())})[]"
