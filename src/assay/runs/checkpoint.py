"""Checkpoints: safetensors and JSON, hashed, and either complete or absent.

A checkpoint is a directory `<count>`, which says where the run was, in environment steps or in
updates. For each section it has `<section>.json` (the shape of the state and its plain values) and
`<section>.safetensors` (its arrays), and it has a `MANIFEST.json` that is written last. It is built
in a temporary directory beside its place, synced and renamed. Nothing is ever unpickled.

One process writes the checkpoints of a run at a time; the lock of the run directory ensures that.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save, save_file

from assay.core.errors import CheckpointError
from assay.core.types import State, Unit
from assay.runs.files import assay_version, fsync_directory, run_error, write_synced

FORMAT = "assay-checkpoint"
SCHEMA = 1
MANIFEST = "MANIFEST.json"
POLICY = "policy"  # the section with the policy as data, where it can be: it acts without torch

_SECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"(\d{12,})(\.replaced)?")
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@dataclass(frozen=True, slots=True)
class Section:
    """A named part of a checkpoint.

    Attributes:
        state: Nested dict of NumPy arrays and plain values.
        version: Changes whenever the state does. Where the previous checkpoint holds the same
            version of the section, its files are linked instead of written again.
    """

    state: State
    version: str | None = None


def write_checkpoint(
    directory: Path,
    count: int,
    sections: Mapping[str, Section],
    previous: Path | None = None,
    *,
    unit: Unit = "env_steps",
) -> Path:
    """Write `directory/<count>` and return its path.

    A checkpoint that is there already for the same count is replaced.

    Args:
        directory: Where the checkpoints of the run are; made if missing.
        count: Where the run is.
        sections: The parts by name (letters, digits, `.`, `_`, `-`).
        previous: The checkpoint before this one, to share unchanged sections with.
        unit: What is counted.

    Raises:
        RunError: The disk is full or cannot be written. Earlier checkpoints are intact.
        TypeError: A state holds a value that a checkpoint cannot store; its path is named.
    """
    for name in sections:
        if not _SECTION.fullmatch(name) or name.casefold() == "manifest":
            raise ValueError(f"'{name}' cannot be the name of a checkpoint section.")
    place = directory / f"{count:012d}"
    shared = _shareable(previous, sections)
    temporary = directory / f".tmp-{place.name}-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        temporary.mkdir()
        entries: dict[str, Any] = {}
        for name, section in sections.items():
            entry = None
            if previous is not None and name in shared:
                entry = _share(previous, temporary, shared[name])
            entries[name] = entry or _write_section(temporary, name, section)
        manifest = {
            "format": FORMAT,
            "schema": SCHEMA,
            "assay": assay_version(),
            unit: count,
            "sections": entries,
        }
        write_synced(temporary / MANIFEST, _render(manifest))
        fsync_directory(temporary)
        _move_into_place(temporary, place)
        fsync_directory(directory)
    except OSError as error:
        raise run_error(error, f"write the checkpoint '{place}'") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place


def read_checkpoint(path: Path, sections: Iterable[str] | None = None) -> dict[str, State]:
    """Return the states in the checkpoint at `path`, or of some sections, checked by its manifest.

    Raises:
        CheckpointError: It is incomplete, altered, not Assay's or from a newer Assay. The file is
            named, and the newest older checkpoint that is intact is suggested.
    """
    try:
        entries = read_manifest(path)["sections"]
        wanted = list(entries) if sections is None else list(sections)
        for name in wanted:
            if name not in entries:
                known = ", ".join(sorted(entries)) or "nothing"
                raise CheckpointError(f"'{path}' has no section '{name}'.", f"It holds: {known}.")
        _check_files(path, {name: entries[name] for name in wanted})
        return {name: _load_section(path, name, entries[name]) for name in wanted}
    except CheckpointError as error:
        _offer_previous(path, error)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint at `path`, without checking the files it lists.

    Raises:
        CheckpointError: There is none, or it is incomplete, altered, not Assay's or from a newer
            Assay.
    """
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "is incomplete" if path.is_dir() else "is not a checkpoint"
        raise CheckpointError(f"'{path}' {what}: '{file}' is missing.") from None
    except OSError as error:
        raise CheckpointError(run_error(error, f"read '{file}'").message) from None
    try:
        manifest = json.loads(raw)
    except ValueError:
        raise CheckpointError(f"'{file}' is incomplete or altered: it is not JSON.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"'{file}' is not the manifest of an Assay checkpoint.")
    if isinstance(manifest.get("schema"), int) and manifest["schema"] > SCHEMA:
        raise CheckpointError(
            f"'{path}' was written by a newer Assay (checkpoint schema {manifest['schema']}; this "
            f"one reads up to {SCHEMA}).",
            "Upgrade Assay to load it.",
        )
    manifest.pop("sha256", None)
    if _render(manifest) != raw or not _well_formed(manifest):
        raise CheckpointError(f"'{file}' was altered: it does not match its own checksum.")
    return manifest


def verify_checkpoint(path: Path) -> None:
    """Check every file of the checkpoint at `path` against the manifest.

    Raises:
        CheckpointError: As for `read_checkpoint`.
    """
    try:
        _check_files(path, read_manifest(path)["sections"])
    except CheckpointError as error:
        _offer_previous(path, error)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in `directory`, oldest first, complete or not."""
    found: dict[int, Path] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            match = _PLACE.fullmatch(path.name)
            # `.replaced` is all there is if a crash came between the two renames of a replacement.
            if match and path.is_dir() and not (match[2] and path.with_suffix("").is_dir()):
                found[int(match[1])] = path
    return [found[count] for count in sorted(found)]


def latest(directory: Path) -> Path | None:
    """Return the newest checkpoint in `directory`, or None; unfinished ones do not count."""
    paths = list_checkpoints(directory)
    return paths[-1] if paths else None


def previous_good(path: Path) -> Path | None:
    """Return the newest checkpoint older than `path` whose files are all intact."""
    match = _PLACE.fullmatch(path.name)
    older = [
        other
        for other in list_checkpoints(path.parent)
        if match is None or int(other.name.split(".")[0]) < int(match[1])
    ]
    for other in reversed(older):
        with contextlib.suppress(CheckpointError):
            _check_files(other, read_manifest(other)["sections"])
            return other
    return None


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` checkpoints and return what was deleted."""
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must stay.")
    doomed = list_checkpoints(directory)[:-keep]
    for path in doomed:
        # Renamed first, so that a half-deleted checkpoint is never taken for a damaged one.
        aside = directory / f".tmp-deleted-{path.name}-{secrets.token_hex(3)}"
        try:
            os.rename(path, aside)
        except OSError as error:
            raise run_error(error, f"delete the checkpoint '{path}'") from None
        shutil.rmtree(aside, ignore_errors=True)
    return doomed


def state_to_bytes(state: State) -> bytes:
    """Return a state as the bytes of one safetensors file; the same state gives the same bytes.

    Raises:
        TypeError: It holds a value that a checkpoint cannot store; its path is named.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = _split(state, (), arrays)
    text = json.dumps({"format": FORMAT, "schema": SCHEMA, "state": tree}, allow_nan=False)
    # One metadata entry: the library writes several in arbitrary order.
    return save(arrays, metadata={"assay": text})


def state_from_bytes(data: bytes) -> State:
    """Return the state that `state_to_bytes` wrote.

    Raises:
        CheckpointError: It is incomplete, altered, not Assay's or from a newer Assay.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        found = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["assay"])
        if found["format"] != FORMAT:
            raise CheckpointError("These bytes are not an Assay state.")
        if found["schema"] > SCHEMA:
            raise CheckpointError(
                f"The state was written by a newer Assay (schema {found['schema']}; this one "
                f"reads up to {SCHEMA}).",
                "Upgrade Assay to load it.",
            )
        state: State = _join(found["state"], load(data))
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"The state is incomplete, altered or not Assay's: {error!r}."
        ) from None
    return state


# Writing


def _write_section(directory: Path, name: str, section: Section) -> dict[str, Any]:
    arrays: dict[str, NDArray[Any]] = {}
    tree = _split(section.state, (), arrays)
    files = [f"{name}.json"]
    # In one line: with an indent, Python's encoder in C is not used, and takes five times as long.
    text = json.dumps(tree, allow_nan=False) + "\n"
    write_synced(directory / files[0], text.encode())
    if arrays:
        files.append(f"{name}.safetensors")
        _save_arrays(directory / files[1], arrays)
    return {
        "version": section.version,
        "files": {
            file: {
                "sha256": _sha256(directory / file),
                "bytes": (directory / file).stat().st_size,
            }
            for file in files
        },
    }


def _save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    try:
        save_file(arrays, path)
    except SafetensorError as error:
        # The library reports the system's errors as text; `files.run_error` wants the number.
        code = re.search(r"os error (\d+)", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(value: Any, path: tuple[str, ...], arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the JSON form of `value`, moving its arrays to `arrays` under `/`-joined paths.

    What JSON lacks is written as an object with one `$` key: arrays and NumPy scalars (by their
    key), tuples, NaN and infinities. A key of the state that starts with `$` gets a second one.
    """
    where = "/".join(path) or "the state"
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.name not in _DTYPES:
            raise TypeError(f"{where}: a checkpoint cannot hold an array of {value.dtype}.")
        key = "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)
        # safetensors copies memory as it is laid out, so it must be little-endian and in C order.
        arrays[key] = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
        return {"$array" if isinstance(value, np.ndarray) else "$scalar": key}
    if isinstance(value, Mapping):
        tree = {}
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{where}: key {name!r} is not a string.")
            tree["$" + name if name.startswith("$") else name] = _split(item, (*path, name), arrays)
        return tree
    if isinstance(value, list | tuple):
        items = [_split(item, (*path, str(i)), arrays) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{where}: a checkpoint holds NumPy arrays and plain values, not {type(value).__name__}."
    )


def _join(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Undo `_split`."""
    if isinstance(tree, list):
        return [_join(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        [(tag, value)] = tree.items()
        if tag == "$array":
            return arrays[value]
        if tag == "$scalar":
            return arrays[value][()]
        if tag == "$tuple":
            return tuple(_join(item, arrays) for item in value)
        if tag == "$float":
            return float(value)
    return {
        name[1:] if name.startswith("$") else name: _join(item, arrays)
        for name, item in tree.items()
    }


def _shareable(previous: Path | None, sections: Mapping[str, Section]) -> dict[str, Any]:
    """Return the entries of the previous manifest whose sections have not changed since."""
    if previous is None:
        return {}
    try:
        entries = read_manifest(previous)["sections"]
    except CheckpointError:
        return {}  # If the previous one is damaged, everything is written again.
    return {
        name: entries[name]
        for name, section in sections.items()
        if section.version is not None and entries.get(name, {}).get("version") == section.version
    }


def _share(previous: Path, directory: Path, entry: dict[str, Any]) -> dict[str, Any] | None:
    """Link (or copy) a section's files from `previous`, or return None if one is damaged."""
    for name, facts in entry["files"].items():
        source, target = previous / name, directory / name
        try:
            if source.stat().st_size != facts["bytes"]:
                return None
            os.link(source, target)
        except FileNotFoundError:
            return None
        except OSError:
            # No hard links here (another file system, or one without them).
            shutil.copyfile(source, target)
            with open(target, "rb") as file:
                os.fsync(file.fileno())
    return entry


def _move_into_place(temporary: Path, place: Path) -> None:
    aside = place.with_name(f"{place.name}.replaced")
    if place.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(place, aside)
        try:
            os.rename(temporary, place)
        except OSError:
            os.rename(aside, place)
            raise
    else:
        os.rename(temporary, place)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """Remove what a killed writer left: it can be as large as the checkpoint itself."""
    replaced = [p for p in directory.glob("*.replaced") if p.with_suffix("").exists()]
    for path in [*directory.glob(".tmp-*"), *replaced]:
        shutil.rmtree(path, ignore_errors=True)


# Reading


def _render(manifest: dict[str, Any]) -> bytes:
    """Return the manifest's bytes, ending in a checksum of the rest."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**manifest, "sha256": digest}, indent=1) + "\n").encode()


def _well_formed(manifest: dict[str, Any]) -> bool:
    """Return whether the manifest names only what `write_checkpoint` could have written."""
    try:
        return all(
            _SECTION.fullmatch(name) is not None
            and f"{name}.json" in entry["files"]
            and {f"{name}.json", f"{name}.safetensors"}.issuperset(entry["files"])
            and all(isinstance(facts["bytes"], int) for facts in entry["files"].values())
            and all(isinstance(facts["sha256"], str) for facts in entry["files"].values())
            for name, entry in manifest["sections"].items()
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _check_files(path: Path, entries: dict[str, Any]) -> None:
    for entry in entries.values():
        for name, facts in entry["files"].items():
            file = path / name
            try:
                size = file.stat().st_size
                if size != facts["bytes"]:
                    raise CheckpointError(
                        f"'{file}' is incomplete or altered: it has {size} bytes, and "
                        f"{facts['bytes']} were written."
                    )
                digest = _sha256(file)
            except FileNotFoundError:
                raise CheckpointError(f"'{file}' is missing.") from None
            except OSError as error:
                raise CheckpointError(run_error(error, f"read '{file}'").message) from None
            if digest != facts["sha256"]:
                raise CheckpointError(
                    f"'{file}' was altered: its content does not match the manifest."
                )


def _load_section(path: Path, name: str, entry: dict[str, Any]) -> State:
    file = path / f"{name}.json"
    arrays: dict[str, NDArray[Any]] = {}
    try:
        tree = json.loads(file.read_bytes())
        if f"{name}.safetensors" in entry["files"]:
            file = path / f"{name}.safetensors"
            with safe_open(file, framework="np") as tensors:
                arrays = {key: tensors.get_tensor(key) for key in tensors.keys()}
        state: State = _join(tree, arrays)
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' is not part of an Assay checkpoint: {error}.") from None
    except OSError as error:
        raise CheckpointError(run_error(error, f"read '{file}'").message) from None
    return state


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _offer_previous(path: Path, error: CheckpointError) -> NoReturn:
    if error.fix is None:
        good = previous_good(path)
        error = CheckpointError(
            error.message,
            f"The checkpoint before it is intact: '{good}'."
            if good
            else "There is no intact checkpoint before it.",
        )
    raise error from None
