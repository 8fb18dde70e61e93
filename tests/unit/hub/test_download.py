"""The real client of the hub against a hub on loopback that has every fault a hub can have."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.hub_models import model_bytes
from doubles.loopback_hub import HubFile, HubRepo, LoopbackHub, serving
from huggingface_hub import constants, hf_hub_download, scan_cache_dir

from eaglelocal.core.atomic_file import make_folder
from eaglelocal.errors import DownloadError, EagleLocalError, ResourceError, UsageError
from eaglelocal.hub import download, hub_api
from eaglelocal.hub.download import DownloadOrder, count_missing_bytes, download_files, order_model
from eaglelocal.hub.hub_api import RetryPolicy, fetch_repo
from eaglelocal.hub.hub_cache import PARTIAL, HubReference, find_partials, list_models, repo_folder
from eaglelocal.hub.transfer import ByteCount, DownloadProgress

REPO = "someone/tiny-GGUF"
CONTENT = model_bytes(rows=8192)  # 2 MiB: several chunks of the client's and of the hub's
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Waits:
    """A patience whose waits take no time, and are counted."""

    said: list[str] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)

    @property
    def retries(self) -> RetryPolicy:
        return RetryPolicy(waits_s=(1.0, 2.0, 4.0), sleep=self.slept_s.append, on_wait=self.said.append)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """The hub that the client asks; the person who runs the tests has no token here."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    repo = HubRepo({"tiny-Q8_0.gguf": HubFile(CONTENT), "README.md": HubFile(b"# tiny\n", is_lfs=False)})
    with serving(LoopbackHub({REPO: repo})) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield hub


def order_of(retries: RetryPolicy, repo: str = REPO, wanted: str | None = None) -> DownloadOrder:
    return order_model(HubReference(repo, (repo,), wanted), retries)


def fetched(cache: Path, waits: Waits, repo: str = REPO, wanted: str | None = None) -> Path:
    order = order_of(waits.retries, repo, wanted)
    (path,) = download_files([order], cache, retries=waits.retries, on_progress=lambda progress: None)
    return path


def partial_path(cache: Path) -> Path:
    return repo_folder(cache, REPO) / "blobs" / f"{SHA256}{PARTIAL}"


def leave_partial(cache: Path, content: bytes) -> None:
    partial_path(cache).parent.mkdir(parents=True)
    partial_path(cache).write_bytes(content)


def refusal(cache: Path, waits: Waits, repo: str = REPO) -> EagleLocalError:
    with pytest.raises(EagleLocalError) as refused:
        fetched(cache, waits, repo)
    assert "\n" not in refused.value.message and refused.value.hint
    assert list_models(cache) == []  # whatever is there, it is no model
    return refused.value


def test_what_is_fetched_is_found_by_every_program_that_uses_the_cache(
    hub: LoopbackHub, tmp_path: Path, waits: Waits
) -> None:
    path = fetched(tmp_path, waits)
    assert path.read_bytes() == CONTENT
    found = hf_hub_download(REPO, "tiny-Q8_0.gguf", cache_dir=tmp_path, local_files_only=True)
    assert Path(found) == path
    scanned = scan_cache_dir(tmp_path)
    assert [repo.repo_id for repo in scanned.repos] == [REPO] and not scanned.warnings
    (model,) = list_models(tmp_path)
    assert (model.reference, model.path, model.size_bytes) == (f"{REPO}:Q8_0", path, len(CONTENT))
    assert not waits.said


def test_what_the_client_has_fetched_is_found_by_us(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hf_hub_download(REPO, "tiny-Q8_0.gguf", cache_dir=tmp_path)
    sent = hub.sent_bytes
    (model,) = list_models(tmp_path)
    assert model.path.read_bytes() == CONTENT
    assert fetched(tmp_path, waits) == model.path
    assert hub.sent_bytes == sent


def test_a_connection_that_drops_is_resumed_where_it_was(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.drops = [700_000, 500_000, 0, 300_000]
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    asked = hub.asked_of_storage()
    starts = [int(a.range.removeprefix("bytes=").split("-")[0] or 0) for a in asked]
    assert starts == sorted(starts) and len(starts) == 5 and starts[1] > 0
    assert hub.sent_bytes < len(CONTENT) + 4 * (1 << 17)  # less than a chunk is fetched twice
    assert len(waits.said) == 4 and "trying again" in waits.said[0]


def test_patience_begins_anew_with_every_byte_that_comes(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.drops = [200_000] * 8  # more often than anybody waits for nothing
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    assert set(waits.slept_s) == {1.0}


def test_a_file_too_large_for_one_answer_comes_in_several(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_api, "MAX_ANSWER_BYTES", 600_000)
    hub.faults.drops = [1 << 30, 200_000]
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    asked = [asked.range for asked in hub.asked_of_storage()]
    assert asked[:2] == ["bytes=0-599999", "bytes=600000-1199999"] and len(asked) == 5
    assert len(waits.said) == 1  # the drop; the end of an answer is no trouble


def test_what_came_stays_for_the_next_call(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.drops = [1_000_000, 0, 0, 0, 0]
    error = refusal(tmp_path, waits)
    assert "connection" in error.message and "resumes" in error.hint
    (partial,) = find_partials(tmp_path)
    assert 800_000 < partial.size_bytes <= 1_000_000
    hub.faults.drops = []
    sent = hub.sent_bytes
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    assert hub.sent_bytes - sent == len(CONTENT) - partial.size_bytes
    assert find_partials(tmp_path) == []


def test_a_server_that_cannot_resume_sends_all_again(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.drops, hub.faults.ignores_ranges = [1_000_000], True
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    assert hub.sent_bytes == 1_000_000 + len(CONTENT)


@pytest.mark.parametrize("content", [b"x" * 1_000_000, CONTENT + b"x", b"x" * len(CONTENT)], ids=len)
def test_a_partial_file_that_is_wrong_is_fetched_anew(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, content: bytes
) -> None:
    leave_partial(tmp_path, content)
    assert fetched(tmp_path, waits).read_bytes() == CONTENT


def test_a_partial_file_that_is_whole_needs_no_bytes(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    leave_partial(tmp_path, CONTENT)
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    assert not hub.asked_of_storage()


def test_bytes_that_are_not_those_promised_are_deleted(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.repos[REPO].files["tiny-Q8_0.gguf"] = HubFile(CONTENT, promised_sha256="0" * 64)
    error = refusal(tmp_path, waits)
    assert "SHA-256 is wrong" in error.message
    assert find_partials(tmp_path) == [] and list((repo_folder(tmp_path, REPO) / "blobs").iterdir()) == []
    assert hub.sent_bytes == len(CONTENT)  # once was enough


def test_small_files_are_checked_as_git_names_them(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    files = hub.repos[REPO].files
    files["small-F16.gguf"] = HubFile(model_bytes(rows=4), is_lfs=False)
    assert fetched(tmp_path, waits, wanted="F16").read_bytes() == files["small-F16.gguf"].content
    files["bad-F32.gguf"] = HubFile(model_bytes(rows=4), promised_sha256="1" * 40, is_lfs=False)
    with pytest.raises(DownloadError, match="SHA-1 is wrong"):
        fetched(tmp_path, waits, wanted="F32")


@pytest.mark.parametrize("where", ["info", "resolve", "storage"])
@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_troubles_of_the_hub_that_pass_are_waited_for(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, where: str, status: int
) -> None:
    setattr(hub.faults, where, (status, 2))
    assert fetched(tmp_path, waits).read_bytes() == CONTENT
    assert waits.slept_s == [1.0, 2.0]


@pytest.mark.parametrize("where", ["info", "resolve", "storage"])
@pytest.mark.parametrize(
    ("status", "message", "waited"),
    [(500, "(500)", 3), (429, "(429)", 3), (403, "(403)", 0), (404, "(404)", 0), (401, "", 0)],
)
def test_troubles_that_stay_are_reported_in_one_line(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, where: str, status: int, message: str, waited: int
) -> None:
    setattr(hub.faults, where, (status, -1))
    error = refusal(tmp_path, waits)
    assert message in error.message
    assert len(waits.slept_s) == waited


def test_a_hub_says_how_long_to_wait(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.info, hub.faults.retry_after = (429, 1), "7"
    fetched(tmp_path, waits)
    assert waits.slept_s == [7.0]
    hub.faults.info, hub.faults.retry_after = (429, -1), "3600"
    error = refusal(tmp_path / "other", waits)
    assert waits.slept_s == [7.0] and "in 3600 s" in error.hint


def test_a_repository_that_is_not_there(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    error = refusal(tmp_path, waits, "someone/nothing")
    assert "no repository someone/nothing" in error.message and not waits.slept_s


def test_a_name_that_no_repository_can_have(hub: LoopbackHub, waits: Waits) -> None:
    with pytest.raises(UsageError, match="not the name of a repository"):
        fetch_repo("some one/no--thing..git", waits.retries)


def test_a_gated_repository_is_explained(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].gated = "manual"
    assert fetch_repo(REPO, waits.retries).is_gated  # its list is public
    with pytest.raises(DownloadError, match="license must be accepted") as refused:
        order_of(waits.retries)
    assert f"{hub.url}/{REPO}" in refused.value.hint and "HF_TOKEN" in refused.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    with pytest.raises(DownloadError, match="your token has no access"):
        order_of(waits.retries)
    assert not hub.asked_of_storage()
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert fetched(tmp_path, waits).read_bytes() == CONTENT


def test_a_token_stays_with_the_hub(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    fetched(tmp_path, waits)
    assert {asked.token for asked in hub.asked_of_storage()} == {""}
    assert hub.token in {asked.token for asked in hub.asked}


def test_a_bad_token_is_named(hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    error = refusal(tmp_path, waits)
    assert "does not accept your token" in error.message and "HF_TOKEN" in error.hint


def test_a_captive_portal_is_not_taken_for_the_hub(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.is_no_hub = True
    assert "does not answer as a hub" in refusal(tmp_path, waits).message


@pytest.mark.parametrize("name", ["../../../evil-Q8_0.gguf", "/tmp/evil-Q8_0.gguf", "a//b-Q8_0.gguf", "..\\x.gguf"])
def test_names_that_would_leave_the_cache_are_refused(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, name: str
) -> None:
    hub.repos[REPO].files = {name: HubFile(CONTENT)}
    message = refusal(tmp_path / "cache", waits).message
    assert f"lists a file of {REPO} whose name leads out of the repository: {name}" in message
    assert list(tmp_path.iterdir()) == [] and not waits.said


@pytest.mark.parametrize(
    "name", ["a\nb-Q8_0.gguf", "a\0b-Q8_0.gguf", "\x1b[2Jx-Q8_0.gguf", "\udc80-Q8_0.gguf", "\u202eb.gguf"]
)
def test_names_that_cannot_be_shown_are_refused_in_letters_that_can(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, name: str
) -> None:
    hub.repos[REPO].files = {name: HubFile(CONTENT)}
    message = refusal(tmp_path / "cache", waits).message
    assert message.isprintable() and "contains a character that cannot be shown" in message and "\\" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["x" * 300 + "-Q8_0.gguf", "\u00e4" * 150 + ".gguf", "/".join(["d" * 200] * 25) + "/x.gguf"]
)
def test_a_name_that_no_disk_takes_is_reported(hub: LoopbackHub, tmp_path: Path, waits: Waits, name: str) -> None:
    hub.repos[REPO].files = {name: HubFile(CONTENT)}
    refused = refusal(tmp_path / "cache", waits)
    assert isinstance(refused, DownloadError) and "whose name is too long" in refused.message
    assert "at most" in refused.message and len(refused.message) < 250
    assert hub.asked_of_storage() == []


def test_a_long_name_next_to_the_wanted_file_does_no_harm(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.repos[REPO].files["x" * 300 + ".png"] = HubFile(b"picture")
    assert fetched(tmp_path, waits).is_file()


def test_a_cache_that_cannot_be_written_is_reported(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever folder it is: here the one of the snapshot."""

    def unable(folder: Path, mode: int) -> None:
        if "snapshots" in folder.parts:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
        make_folder(folder, mode)

    monkeypatch.setattr(download, "make_folder", unable)
    refused = refusal(tmp_path, waits)
    assert isinstance(refused, ResourceError) and "Read-only file system" in refused.message


@pytest.mark.parametrize("hash_", ["../../x", "F" * 64, "0" * 63])
def test_hashes_that_are_none_are_refused(hub: LoopbackHub, tmp_path: Path, waits: Waits, hash_: str) -> None:
    hub.repos[REPO].files["tiny-Q8_0.gguf"].promised_sha256 = hash_
    assert "does not answer as a hub" in refusal(tmp_path, waits).message
    hub.repos[REPO] = HubRepo({"x-Q8_0.gguf": HubFile(CONTENT)}, commit="../" + "0" * 37)
    assert "does not answer as a hub" in refusal(tmp_path, waits).message


def test_no_hub_answers(hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    error = refusal(tmp_path, waits)
    assert "the connection to 127.0.0.1:9 failed" in error.message and len(waits.slept_s) == 3


def test_offline_nothing_is_asked(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = refusal(tmp_path, waits)
    assert "HF_HUB_OFFLINE" in error.message and not hub.asked and not waits.slept_s


def test_a_silent_storage_is_given_up(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults.hangs = threading.Event()
    try:
        error = refusal(tmp_path, waits)
    finally:
        hub.faults.hangs.set()
    assert "connection" in error.message and len(waits.slept_s) == 3


def test_a_disk_without_room_is_asked_first(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(waits.retries)
    leave_partial(tmp_path, CONTENT[:1_000_000])
    needed = len(CONTENT) - 1_000_000 + (64 << 20)
    monkeypatch.setattr("eaglelocal.hub.download.free_bytes", lambda folder: needed - 1)
    with pytest.raises(ResourceError, match="MB free"):
        download_files([order], tmp_path, retries=waits.retries, on_progress=lambda progress: None)
    assert not hub.asked_of_storage()
    monkeypatch.setattr("eaglelocal.hub.download.free_bytes", lambda folder: needed)
    download_files([order], tmp_path, retries=waits.retries, on_progress=lambda progress: None)


def test_a_disk_that_becomes_full_keeps_what_came(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # the next byte is refused, as on a full disk
    try:
        error = refusal(tmp_path, waits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(error, ResourceError) and "resumes the download" in error.hint
    assert str(partial_path(tmp_path)) in error.message
    assert 0 < find_partials(tmp_path)[0].size_bytes <= 1_000_000
    assert fetched(tmp_path, waits).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot write"):
        fetched(tmp_path / "file", waits)


def test_parts_of_a_model_count_only_together(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    names = [f"Q8_0/big-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    files = {name: HubFile(model_bytes(rows=64 + n, split=(n, 3))) for n, name in enumerate(names)}
    hub.repos["someone/big-GGUF"] = HubRepo(files)
    hub.faults.drops = [1 << 30, 100, 0, 0, 0]  # the second part breaks off for good
    with pytest.raises(DownloadError):
        fetched(tmp_path, waits, "someone/big-GGUF")
    assert list_models(tmp_path) == []
    hub.faults.drops = []
    path = fetched(tmp_path, waits, "someone/big-GGUF")
    (model,) = list_models(tmp_path)
    assert model.path == path and model.reference == "someone/big-GGUF:Q8_0"
    assert [part.read_bytes() for part in model.paths] == [files[name].content for name in names]


def test_progress_is_of_all_files_together(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.repos["someone/more-GGUF"] = HubRepo({"more-F16.gguf": HubFile(model_bytes(rows=4096))})
    hub.faults.drops = [500_000]
    orders = [order_of(waits.retries), order_of(waits.retries, "someone/more-GGUF")]
    reports: list[DownloadProgress] = []
    download_files(orders, tmp_path, retries=waits.retries, on_progress=reports.append)
    total = sum(order.size_bytes for order in orders)
    assert {progress.total_bytes for progress in reports} == {total}
    done = [progress.done_bytes for progress in reports]
    assert done == sorted(done) and done[-1] == total and len(done) > 10
    assert reports[-1].fraction == 1.0


def test_on_a_disk_without_links_files_are_downloaded_once(
    hub: LoopbackHub, tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes lie under the name in the snapshot there, and no blob is left."""

    def refuse(*arguments: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("eaglelocal.hub.download.os.symlink", refuse)
    order = order_of(waits.retries)
    assert count_missing_bytes([order], tmp_path) == order.size_bytes
    path = fetched(tmp_path, waits)
    assert path.read_bytes() == CONTENT and not path.is_symlink()
    assert count_missing_bytes([order], tmp_path) == 0
    monkeypatch.setattr("eaglelocal.hub.download.free_bytes", lambda folder: 0)
    download_files([order], tmp_path, retries=waits.retries, on_progress=lambda progress: None)  # needs no room


def test_no_other_user_may_write_fetched_files_whatever_the_umask(
    hub: LoopbackHub, tmp_path: Path, waits: Waits
) -> None:
    before = os.umask(0)
    try:
        fetched(tmp_path / "hub", waits)
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "hub").rglob("*") if not path.is_symlink() and path.suffix != ".lock"]
    assert len(made) > 6 and [path for path in made if path.stat().st_mode & 0o022] == []


def test_what_killed_writers_of_a_reference_left_goes(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    folder = repo_folder(tmp_path, REPO)
    folder.mkdir(parents=True)
    (folder / ".eaglelocal-left.part").write_text("half a comm")
    fetched(tmp_path, waits)
    assert sorted(path.name for path in folder.iterdir()) == ["blobs", "refs", "snapshots"]
    assert [path.name for path in (folder / "refs").iterdir()] == ["main"]


def test_the_rate_is_of_the_last_seconds() -> None:
    now, reports = [0.0], []
    tally = ByteCount(1000, reports.append, clock=lambda: now[0])
    tally.add_present(500)
    for second in range(31):
        now[0] = float(second)
        tally.add_received(10 if second < 20 else 2)
    assert reports[0].rate is None
    assert reports[20].rate == pytest.approx(10, rel=0.2)
    assert reports[-1].rate == pytest.approx(2, rel=0.1)
    assert reports[-1].left_s == pytest.approx((1000 - reports[-1].done_bytes) / reports[-1].rate)


def test_concurrent_downloads_fetch_a_file_once(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    hub.faults.slow_s = 0.02
    orders = [order_of(waits.retries) for _ in range(3)]
    waiting: list[str] = []
    paths: list[Path] = []

    def one(order: DownloadOrder) -> None:
        paths.extend(
            download_files([order], tmp_path, retries=RetryPolicy(), on_progress=lambda p: waiting.append(p.waits_for))
        )

    threads = [threading.Thread(target=one, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 3 and len(set(paths)) == 1 and paths[0].read_bytes() == CONTENT
    assert hub.sent_bytes == len(CONTENT)
    assert "tiny-Q8_0.gguf" in waiting


def test_a_new_commit_with_the_same_bytes_needs_no_bytes(hub: LoopbackHub, tmp_path: Path, waits: Waits) -> None:
    before = fetched(tmp_path, waits)
    hub.repos[REPO].commit = "f" * 40
    after = fetched(tmp_path, waits)
    assert after != before and after.read_bytes() == CONTENT and hub.sent_bytes == len(CONTENT)
    (model,) = list_models(tmp_path)
    assert model.commit == "f" * 40
