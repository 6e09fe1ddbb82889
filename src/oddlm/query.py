"""SQL over a store, through DuckDB. Imports no torch."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .store import MOST_LINE_BYTES, ROWS, SCHEMA, SPEC, SUMMARY, Store, StoreError

# What is read of each file; the rest of what DuckDB finds there is left alone.
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
WILD = set("*?[")
_TABLES = """
create table problems as
    select run, problem, prompt, seed, nfe, seconds, score_seconds, diversity, len(samples) as n,
           list_count(list_filter(samples, lambda s: s.correct)) as correct
    from rows;
create table samples as
    select run, problem, unnest(samples, recursive := true), seed, nfe, seconds from rows;
create table runs as
    select specs.run, spec->>'model' as model, spec->>'task' as task, spec->>'protocol' as protocol,
           try_cast(spec->>'n' as integer) as n, try_cast(spec->>'seed' as bigint) as seed,
           spec->'params'->>'objective' as objective, try_cast(spec->'params'->>'alpha' as double) as alpha,
           try_cast(spec->'params'->>'temperature' as double) as temperature,
           specs.problems, coalesce(counted.done, 0) as done,
           coalesce(imported is not null or counted.done >= summaries.problems, false) as complete,
           summaries.seconds, passed, summaries.diversity, spec
    from specs left join summaries on summaries.run = specs.run
               left join (select run, count(*) as done from rows group by run) counted on counted.run = specs.run;
drop table rows; drop table specs; drop table summaries;
"""


@dataclass(frozen=True, slots=True)
class Answer:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def sql(store: Store, query: str) -> Answer:
    """The answer to a query over the tables runs, problems and samples.

    They are copied into memory first; by the time the query runs, DuckDB can neither read nor write a file. Runs that cannot be
    read are left out, with a warning each.
    """
    try:
        import duckdb
    except ImportError as error:
        raise StoreError("queries need the extra 'store': pip install 'oddlm[store]'") from error
    where = store.folder.absolute()
    if wild := sorted(WILD & set(str(where))):
        raise StoreError(f"{where}: DuckDB takes the {wild[0]} in it for a pattern; move the store to query it")
    folders = [where / name for name in _readable(store)]
    with duckdb.connect(":memory:") as database:
        database.execute("set temp_directory = ''")
        for file, table in ((SPEC, "specs"), (SUMMARY, "summaries"), (ROWS, "rows")):
            _copy(database, table, file, [folder / file for folder in folders])
        database.execute(_TABLES)
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


def _readable(store: Store) -> Iterator[str]:
    """The runs of which every file can be opened and is what it should be."""
    for name in store.ids():
        try:
            if wild := sorted(WILD & set(name)):
                raise StoreError(f"DuckDB takes the {wild[0]} in its name for a pattern; rename the folder")
            store.exact_head(name)
        except StoreError as error:
            warnings.warn(f"left out run {name}: {error}", stacklevel=3)
        else:
            yield name


def _copy(database: Any, table: str, file: str, paths: Sequence[Path]) -> None:
    """Files of one kind as a table with the run's id; lines that are torn, damaged or of another schema are left out."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in _FILES[file].items())
    database.execute(f"create table {table} (run VARCHAR, {kinds})")
    present = {str(path): path.stat().st_size for path in paths if path.is_file()}
    present = {path: size for path, size in present.items() if size}
    if present:
        columns = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in _FILES[file].items()) + "}"
        database.execute(
            f"insert into {table} select parse_path(filename)[-2], {', '.join(_FILES[file])} from read_json(?, "
            f"columns = {columns}, format = 'newline_delimited', filename = true, ignore_errors = true, "
            f"maximum_object_size = {min(max(present.values()), MOST_LINE_BYTES)})",  # DuckDB takes twice that at once
            [list(present)],
        )
    damaged = database.execute(f"select count(*) from {table} where schema_version is null").fetchone()[0]
    if damaged:
        warnings.warn(f"left out {damaged} unfinished or damaged lines of {file}", stacklevel=3)
    other = f"select distinct run, schema_version from {table} where schema_version != {SCHEMA}"
    for run, version in database.execute(other).fetchall():
        warnings.warn(f"left out run {run}: {file} has schema {version}, this oddlm reads {SCHEMA}", stacklevel=3)
    database.execute(f"delete from {table} where schema_version is distinct from {SCHEMA}")
