"""Conversations on disk: one JSON file each, written atomically, readable by the owner only.

This file has the rules for names, and the format; callers decide when to save. A name is never a path.
Pictures are separate files in a folder beside them (pictures.py), each written once.
"""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from eaglelocal.conversation import pictures
from eaglelocal.conversation.added_file import fence_code
from eaglelocal.conversation.conversation import (
    Branch,
    CompletedCall,
    Conversation,
    FileStamp,
    ToolRound,
    Turn,
    TurnSummary,
    walk_branches,
)
from eaglelocal.conversation.sampling_form import read_values
from eaglelocal.conversation.tool_rounds import describe_call
from eaglelocal.core.atomic_file import PRIVATE, make_folder, sync_folder, write_atomically
from eaglelocal.core.events import Finished
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.spelling import closest_word
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.terminal_text import FaultInLine, decode_text, join_in_json, join_surrogates, make_printable
from eaglelocal.core.tools import ToolCall
from eaglelocal.core.user_paths import expand_path, quote_path
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError

FORMAT_VERSION = 1
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_SEARCH_BYTES = 32 * 1024 * 1024
MAX_NAME_BYTES = 255 - len(".json")  # the limit of file systems
MAX_FRESH_NAME = 48  # characters, so that a list of conversations is easy to read
IN_NAMES = r"\w .,'+=()!&%-"  # characters that every file system takes
NAME = re.compile(rf"\w[{IN_NAMES}]{{0,79}}")


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """An entry of the list of saved conversations."""

    name: str
    modified_at: float  # seconds since 1970


def list_conversations(folder: Path) -> tuple[SavedConversation, ...]:
    """Return the saved conversations of a folder, latest first."""
    found = []
    for path in list_own(folder, "*.json"):
        with suppress(OSError):  # it was just removed, or is a dangling link
            found.append(SavedConversation(path.stem, path.stat().st_mtime))
    return tuple(sorted(found, key=lambda entry: (entry.modified_at, entry.name), reverse=True))


def read_search_texts(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of saved conversations with their file's text, to be searched; long and unreadable ones lack it.

    The case of the texts is folded. At most MAX_SEARCH_BYTES are read in all.
    """
    num_left = MAX_SEARCH_BYTES
    for name in names:
        try:
            path = folder / f"{name}.json"
            num_left -= path.stat().st_size
            if num_left < 0:
                return
            content = read_json(read_own(path))
            branches = [content["turns"], *content.get("others", ())]  # type: ignore[index, attr-defined]
            texts = (text for branch in branches for turn in branch for text in (turn["question"], turn["answer"]))
            yield name, "\n".join(texts).casefold()
        except (OSError, ValueError, TypeError, AttributeError, LookupError):
            continue  # opening it says what is wrong


def list_names(folder: Path) -> tuple[str, ...]:
    return tuple(entry.name for entry in list_conversations(folder))


def choose_name(folder: Path, question: str) -> str:
    """Return an unused name made of a question's first words: `What is an eagle`, `What is an eagle 2`."""
    words = re.sub(rf"[^{IN_NAMES}]+", " ", question).split()
    base = _strip_unfit_end(re.sub(r"^\W+", "", " ".join(words)[:MAX_FRESH_NAME])) or "chat"
    taken = {name.casefold() for name in list_names(folder)}  # some file systems ignore case
    numbered = (f"{base} {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name.casefold() not in taken)


def _strip_unfit_end(name: str) -> str:
    """Strip trailing blanks, marks, and `.json`, which `find_path` would drop or refuse."""
    while name != (shorter := name.rstrip(" .,'+=(!&-").removesuffix(".json")):
        name = shorter
    return name


def rename(folder: Path, old: str, new: str) -> str:
    """Rename a saved conversation and return its new name without `.json`. Raises UsageError, ResourceError."""
    source, target = _find_existing(folder, old), find_path(folder, new)
    if target.exists() and target != source:
        raise UsageError(f"a conversation named {target.stem!r} already exists")
    with _report_failure("rename", source):
        source.rename(target)
        sync_folder(folder)
    return target.stem


def delete(folder: Path, name: str) -> None:
    """Remove a saved conversation for good. Raises UsageError, ResourceError."""
    path = _find_existing(folder, name)
    digests = pictures.find_digests(path)
    with _report_failure("remove", path):
        path.unlink()
        sync_folder(folder)
        pictures.drop(folder, digests)


@contextmanager
def _report_failure(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a ResourceError that names the path."""
    try:
        yield
    except OSError as problem:
        hint = f"ls -ld {quote_path(path.parent)}"
        raise ResourceError(f"cannot {action} {path}: {problem.strerror}", hint=hint) from problem


def find_path(folder: Path, name: str) -> Path:
    """Return the file of a conversation. Raises UsageError on an invalid or too long name."""
    plain = name.strip().removesuffix(".json")
    if not NAME.fullmatch(plain) or plain.endswith((".", " ")):
        raise UsageError(f"invalid name for a conversation: {name!r}", hint="letters, digits, blanks and -_.,'+=()!&%")
    if len(plain.encode()) > MAX_NAME_BYTES:
        size = f"{len(plain.encode())} bytes, and a file name has at most {MAX_NAME_BYTES}"
        raise UsageError(f"the name is too long: {size}", hint="/save SHORTER")
    return folder / f"{plain}.json"


def save(conversation: Conversation, path: Path, *, target: str) -> None:
    """Write a conversation and its pictures; a crash leaves the old file. Raises ResourceError."""
    with _report_failure("write", path):
        make_folder(path.parent, PRIVATE)
        pictures.keep(path.parent, _list_pictures(conversation))
        conversation.target, num_turns = target, len(conversation.turns)  # an answer may add one meanwhile
        write_atomically(path, json.dumps(join_in_json(_to_json(conversation)), ensure_ascii=False, indent=1))
        conversation.num_saved, conversation.stamp = num_turns, read_stamp(path)


def _list_pictures(conversation: Conversation) -> Iterator[pictures.AttachedPicture]:
    return (picture for branch in walk_branches(conversation.kept) for turn in branch for picture in turn.pictures)


def read_stamp(path: Path) -> FileStamp:
    """Return the stamp of a file. Raises OSError."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_changed(conversation: Conversation, path: Path) -> bool:
    """Return whether somebody else has written the conversation's file since it was read or written here."""
    try:
        return read_stamp(path) != conversation.stamp
    except OSError:
        return False  # it was deleted: nothing in it can be lost


def rescue(conversation: Conversation, folder: Path, *, target: str) -> Path | None:
    """Save unsaved turns in a new file and return its path; None if nothing is unsaved or writing failed."""
    if len(conversation.turns) <= conversation.num_saved:
        return None
    name = choose_name(folder, f"rescued {conversation.turns[0].question}")
    try:
        path = find_path(folder, name)
        save(conversation, path, target=target)
    except EagleLocalError:
        return None
    return path


def load_conversation(folder: Path, name: str) -> Conversation:
    """Read and check a conversation. Raises UsageError with what is wrong and where, or ResourceError."""
    path = _find_existing(folder, name)
    try:
        stamp = read_stamp(path)
        content = join_in_json(read_json(decode_text(read_own(path, MAX_FILE_BYTES))))
    except OSError as problem:
        raise ResourceError(f"cannot read {path}: {problem.strerror}", hint=f"ls -l {quote_path(path)}") from problem
    except FaultInLine as problem:
        raise UsageError(f"{path} is not a conversation: line {problem.line}: {problem}") from problem
    except ValueError as problem:
        raise UsageError(f"{path} is not a conversation: {problem}") from problem
    conversation = _read_conversation(content, path)
    conversation.stamp = stamp
    return conversation


def load_last(folder: Path) -> Conversation:
    """Load the conversation that was saved last. Raises UsageError if there is none, and as `load_conversation`."""
    names = list_names(folder)
    if not names:
        raise UsageError("no conversation is saved yet", hint="eaglelocal chat")
    return load_conversation(folder, names[0])


def _find_existing(folder: Path, name: str) -> Path:
    path = find_path(folder, name)
    if not path.is_file():
        raise UsageError(f"no conversation named {path.stem!r}", hint=_suggest_names(folder, path.stem))
    return path


def _suggest_names(folder: Path, name: str) -> str:
    known = list_names(folder)
    if not known:
        return "/save NAME saves a conversation"
    close = closest_word(name, known)
    return f"/load {close}" if close else "saved conversations: " + ", ".join(known[:8])


# Other versions of turns are a flat list, which the turns name by number: a reader of JSON limits how deep it is
# nested. A program that does not know them reads the versions that are chosen.
def _to_json(conversation: Conversation) -> dict[str, object]:
    turns, *others = _branches_to_json(conversation.kept)
    return {
        "version": FORMAT_VERSION,
        "target": conversation.target,
        **({"reference": conversation.reference} if conversation.reference else {}),
        **({"sampling": conversation.sampling} if conversation.sampling else {}),
        "system": conversation.system,
        "turns": turns,
        **({"others": others} if others else {}),
        **({"summary": _summary_to_json(made)} if (made := conversation.summarized) else {}),
    }


def _summary_to_json(made: TurnSummary) -> dict[str, object]:
    return {"text": made.text, "num_turns": made.num_turns, "last_answer": made.last_answer}


def _read_summary(content: object) -> TurnSummary | None:
    """Return a summary; None if there is none or it is malformed: then the turns are sent."""
    match content:
        case {"text": str(text), "num_turns": int(num_turns), "last_answer": str(answer)} if text and num_turns > 0:
            return TurnSummary(text, num_turns, answer)
    return None


def _branches_to_json(turns: Branch) -> list[list[dict[str, object]]]:
    """Return the turns, and the branches of their other versions in the order of `walk_branches`."""
    written, number = [], 0
    for branch in walk_branches(turns):
        written.append([_turn_to_json(turn) for turn in branch])
        for turn, fields in zip(branch, written[-1], strict=True):
            if turn.others:
                fields |= {"version": turn.version, "others": [number + at for at in range(len(turn.others))]}
                number += len(turn.others)
    return written


def _turn_to_json(turn: Turn) -> dict[str, object]:
    fields: dict[str, object] = {"question": turn.question, "answer": turn.answer, "stopped": turn.stopped}
    fields |= {"reasoning": turn.reasoning} if turn.reasoning else {}
    fields |= {"rounds": [_round_to_json(each) for each in turn.rounds]} if turn.rounds else {}
    fields |= {"figures": _figures_to_json(turn.finished)} if turn.finished is not None else {}
    return fields | ({"pictures": pictures.to_json(turn.pictures)} if turn.pictures else {})


def _figures_to_json(finished: Finished) -> dict[str, object]:
    """Return what the line below an answer says."""
    return {
        "reason": finished.reason,
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "reasoning_tokens": finished.reasoning_tokens,
        "seconds": finished.timings.ttft_s + finished.timings.decode_s,
    }


def _read_figures(content: object) -> Finished | None:
    match content:
        case {"reason": str(reason), "prompt_tokens": int(prompt), "completion_tokens": int(said),
              "reasoning_tokens": int(thought), "seconds": float(seconds)}:  # fmt: skip
            timings = Timings(decode_s=seconds)
            return Finished("", reason, "", prompt, said, timings, SpeculationStats(), reasoning_tokens=thought)
    return None


def _round_to_json(done: ToolRound) -> dict[str, object]:
    calls = [
        {
            "id": one.call.id,
            "name": one.call.name,
            "arguments": one.call.arguments,
            "tool": one.label,
            "result": one.result,
            "state": one.state,
        }
        for one in done.calls
    ]
    return {"text": done.text, "reasoning": done.reasoning, "calls": calls}


def _read_conversation(content: object, path: Path) -> Conversation:
    if not isinstance(content, dict) or "turns" not in content:
        raise UsageError(f"{path} is not a conversation: it has no turns")
    version = content.get("version")
    if version != FORMAT_VERSION:
        raise UsageError(f"{path} has version {version!r}, but this program reads version {FORMAT_VERSION}")
    system, turns = content.get("system", ""), content["turns"]
    if not isinstance(system, str) or not isinstance(turns, list):
        raise UsageError(f"{path} is not a conversation: system must be text and turns a list")
    return Conversation(
        system=system,
        turns=_read_turns(turns, content.get("others", []), path),
        name=path.stem,
        num_saved=len(turns),
        target=_read_text(content.get("target")),
        reference=_read_text(content.get("reference")),
        sampling=read_values(content.get("sampling")),
        summarized=_read_summary(content.get("summary")),
    )


def _read_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _read_turns(turns: list[object], others: object, path: Path) -> list[Turn]:
    """Return the turns with their other versions, each of which comes after the turn that names it, and once.

    Versions that no turn names are kept as those of the first turn, so that saving loses nothing.
    """
    if not isinstance(others, list) or not all(isinstance(branch, list) and branch for branch in others):
        raise UsageError(f"{path} is not a conversation: others must be lists of turns")
    read: dict[int, Branch] = {}
    for number, branch in reversed([*enumerate([turns, *others], -1)]):
        read[number] = tuple(_read_versions(turn, at, read, path) for at, turn in enumerate(branch, 1))
    chosen, *loose = [read[number] for number in sorted(read)]
    if not chosen and loose:
        chosen, *loose = loose
    return [replace(turn, others=(*turn.others, *loose)) if turn is chosen[0] else turn for turn in chosen]


def _read_versions(content: object, number: int, read: dict[int, Branch], path: Path) -> Turn:
    """Return a turn with its other versions, which are taken out of `read`."""
    turn = _read_turn(content, number, path)
    match content:
        case {"others": [*others], "version": int(version)} if 0 <= version <= len(others):
            try:
                return replace(turn, others=tuple(read.pop(each) for each in others), version=version)
            except (KeyError, TypeError):
                raise UsageError(f"{path}: turn {number} names versions that are not there") from None
    return turn


def _read_turn(content: object, number: int, path: Path) -> Turn:
    fields = {"stopped": False, "reasoning": ""} | (content if isinstance(content, dict) else {})
    match fields:
        case {"question": str(question), "answer": str(answer), "reasoning": str(reasoning), "stopped": bool(stopped)}:
            shown = pictures.from_json(path.parent, fields.get("pictures", []))
            rounds = _read_rounds(fields.get("rounds", []))
            if shown is not None and rounds is not None:
                turn = Turn(question, answer, stopped, reasoning, shown, rounds)
                return replace(turn, finished=_read_figures(fields.get("figures")))
            raise UsageError(f"{path}: turn {number} has invalid {'pictures' if shown is None else 'calls of tools'}")
    raise UsageError(f"{path}: turn {number} needs a question and an answer, both text")


def _read_rounds(content: object) -> tuple[ToolRound, ...] | None:
    """Return the rounds of calls of a turn; None if they are malformed."""
    try:
        return tuple(map(_read_round, content)) if isinstance(content, list) else None
    except ValueError:
        return None


def _read_round(content: object) -> ToolRound:
    match content:
        case {"text": str(text), "reasoning": str(reasoning), "calls": list(calls)}:
            return ToolRound(tuple(map(_read_call, calls)), text, reasoning)
    raise ValueError("no round")


def _read_call(content: object) -> CompletedCall:
    names = ("id", "name", "arguments", "tool", "result", "state")
    values = [content.get(name) for name in names] if isinstance(content, dict) else []
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(names):
        raise ValueError("no call")
    call_id, name, arguments, label, result, state = texts
    return CompletedCall(ToolCall(call_id, name, arguments), label, result, state)


# ---- markdown export: export of a conversation as a Markdown document. Pure except `export_markdown`, which writes
# it
#
# Answers stay as the model wrote them; questions become quotes, so that a heading in one does not break the outline.
def format_markdown(conversation: Conversation, *, target: str) -> str:
    """Return the document: title, system message, then question and answer of each turn, reasoning folded."""
    title = f"# {make_printable(conversation.name) or 'Conversation'}"
    parts = [title, f"*{make_printable(target)}*"]
    if conversation.system:
        parts += ["**System:**", _quote(conversation.system)]
    return "\n\n".join([*parts, *(part for turn in conversation.turns for part in _format_turn(turn))]) + "\n"


def export_markdown(conversation: Conversation, name: str, *, target: str) -> Path:
    """Write the document to a new file of that name and return its path; no file is overwritten.

    Raises UsageError, ResourceError; a partly written file is removed then.
    """
    if not conversation.turns:
        raise UsageError("there is nothing to export yet")
    path = expand_path(name)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # as private as the conversation itself
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            _write(file, path, join_surrogates(format_markdown(conversation, target=target)))
        return path.absolute()
    except FileExistsError:
        raise UsageError(f"{path} already exists", hint="/export ANOTHER.md") from None
    except OSError as problem:
        command = "mkdir -p" if isinstance(problem, FileNotFoundError) else "ls -ld"
        hint = f"{command} {shlex.quote(str(path.parent))}"
        raise ResourceError(f"cannot write {path}: {problem.strerror}", hint=hint) from problem


def _write(file: TextIO, path: Path, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except BaseException:
        path.unlink()
        raise


def _format_turn(turn: Turn) -> list[str]:
    rounds = [part for each in turn.rounds for part in _format_round(each)]
    stopped = "*(stopped here)*" if turn.stopped else ""
    answer = [_format_reasoning(turn.reasoning), turn.answer.strip(), stopped]
    return [part for part in ("---", _quote(turn.shown_question), *rounds, *answer) if part]


def _format_round(done: ToolRound) -> list[str]:
    calls = (
        _fold(describe_call(one), f"{fence_code(one.call.arguments)}\n\n{fence_code(one.result)}") for one in done.calls
    )
    return [_format_reasoning(done.reasoning), done.text.strip(), *calls]


def _format_reasoning(reasoning: str) -> str:
    return _fold("Thoughts", reasoning.strip()) if reasoning else ""


def _fold(title: str, text: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n\n{text}\n\n</details>"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
