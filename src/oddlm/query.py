"""SQL over a store, through DuckDB. Imports no torch."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .store import ROWS, SCHEMA, SPEC, SUMMARY, Store, StoreError

# What is read of each file; the rest of what DuckDB finds there is left alone.
_FILES = {
    SPEC: {"schema_version": "INTEGER", "id": "VARCHAR", "problems": "INTEGER", "spec": "JSON"},
    SUMMARY: {"schema_version": "INTEGER", "id": "VARCHAR", "seconds": "DOUBLE", "passed": "JSON", "diversity": "JSON"},
    ROWS: {
        "schema_version": "INTEGER",
        "problem": "VARCHAR",
        "prompt": "VARCHAR",
        "seed": "BIGINT",
        "nfe": "INTEGER",
        "seconds": "DOUBLE",
        "score_seconds": "DOUBLE",
        "diversity": "JSON",
        "samples": "STRUCT(index INTEGER, text VARCHAR, length INTEGER, finish_reason VARCHAR, correct BOOLEAN, "
        "answer VARCHAR, detail VARCHAR, tokens INTEGER[])[]",
    },
}
_TABLES = """
create table problems as
    select run, problem, prompt, seed, nfe, seconds, score_seconds, diversity, len(samples) as n,
           list_count(list_filter(samples, lambda s: s.correct)) as correct
    from rows;
create table samples as
    select run, problem, unnest(samples, recursive := true), seed, nfe, seconds from rows;
create table runs as
    select specs.run, spec->>'model' as model, spec->>'task' as task, spec->>'protocol' as protocol,
           (spec->>'n')::integer as n, (spec->>'seed')::bigint as seed,
           spec->'params'->>'objective' as objective, (spec->'params'->>'alpha')::double as alpha,
           (spec->'params'->>'temperature')::double as temperature,
           specs.problems, (select count(*) from rows where rows.run = specs.run) as done,
           summaries.run is not null as complete, summaries.seconds, passed, summaries.diversity, spec
    from specs left join summaries on summaries.run = specs.run;
drop table rows; drop table specs; drop table summaries;
"""


@dataclass(frozen=True, slots=True)
class Answer:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def sql(store: Store, query: str) -> Answer:
    """The answer to a query over the tables runs, problems and samples.

    They are copied into memory first; by the time the query runs, DuckDB can neither read nor write a file.
    """
    try:
        import duckdb
    except ImportError as error:
        raise StoreError("queries need the extra 'store': pip install 'oddlm[store]'") from error
    folders = [store.folder.absolute() / name for name in store.ids()]
    if wild := sorted(set("*?[") & set(str(store.folder.absolute()))):
        raise StoreError(
            f"{store.folder.absolute()}: DuckDB takes the {wild[0]} in it for a pattern; move the store to query it"
        )
    with duckdb.connect(":memory:") as database:
        database.execute("set temp_directory = ''")
        for file, table in ((SPEC, "specs"), (SUMMARY, "summaries"), (ROWS, "rows")):
            _copy(database, table, file, [folder / file for folder in folders])
        database.execute(_TABLES)
        database.execute("set enable_external_access = false")
        database.execute("set lock_configuration = true")
        try:
            result = database.execute(query)
            names = [column[0] for column in result.description or ()]
            return Answer(tuple(names), tuple(result.fetchall()) if names else ())
        except duckdb.Error as error:
            raise StoreError(str(error).strip()) from error


def _copy(database: Any, table: str, file: str, paths: Sequence[Path]) -> None:
    """Files of one kind as a table with the run's id; lines that are torn or damaged are left out, and counted."""
    columns = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in _FILES[file].items()) + "}"
    kinds = ", ".join(f"{name} {kind}" for name, kind in _FILES[file].items())
    database.execute(f"create table {table} (run VARCHAR, {kinds})")
    present = [str(path) for path in paths if path.exists() and path.stat().st_size]
    if present:
        database.execute(
            f"insert into {table} select parse_path(filename)[-2], {', '.join(_FILES[file])} from read_json(?, "
            f"columns = {columns}, format = 'newline_delimited', filename = true, ignore_errors = true, "
            f"maximum_object_size = {1 << 30})",
            [present],
        )
    damaged = database.execute(f"select count(*) from {table} where schema_version is null").fetchone()[0]
    if damaged:
        warnings.warn(f"left out {damaged} unfinished or damaged lines of {file}", stacklevel=3)
        database.execute(f"delete from {table} where schema_version is null")
    other = database.execute(f"select run, schema_version from {table} where schema_version != {SCHEMA} limit 1").fetchone()
    if other:
        raise StoreError(f"run {other[0]}: {file} has schema {other[1]}, this oddlm reads {SCHEMA}; give another --store")
