"""What every engine has to do with jobs whose workers are killed, hang or find a full disk."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from antiphase.cli.engines import copy_study, open_engine
from antiphase.cli.output import Output
from antiphase.experiments import local_pool
from antiphase.experiments.engine import attempt
from antiphase.experiments.leases import LEASES, SECONDS, holders, lease
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.results_copy import CopyingEngine, ResultsCopy
from antiphase.experiments.train_all import train_all
from tests.cli.runner import invoke
from tests.experiments.stub_jobs import StubJob, assert_each_step_once, shared_jobs


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def test_jobs_are_performed_once(tmp_path):
    jobs = [StubJob(str(number)) for number in range(6)]
    said = console()
    assert train_all([*jobs, *jobs[:2]], tmp_path, said, LocalEngine(2)) == {}
    assert_each_step_once(jobs, tmp_path)
    assert "6 runs, 6 of them to train" in said.file.getvalue()
    assert "(0 left)" in said.file.getvalue()
    assert holders(tmp_path / LEASES) == {}
    assert train_all(jobs, tmp_path, said, LocalEngine(2)) == {}
    assert "6 runs, 0 of them to train" in said.file.getvalue()


def test_a_job_whose_process_is_killed_is_resumed(tmp_path):
    jobs = [StubJob(str(number)) for number in range(4)] + [StubJob("a", fault="killed")]
    assert train_all(jobs, tmp_path, console(), LocalEngine(2)) == {}
    assert_each_step_once(jobs, tmp_path)


def test_a_job_that_is_killed_again_and_again_fails_alone(tmp_path):
    jobs = [StubJob("0"), StubJob("bad", 3, fault="killed always"), StubJob("1")]
    errors = train_all(jobs, tmp_path, console(), LocalEngine(1, retries=1))
    assert list(errors) == ["bad"]
    assert "killed 2 times" in errors["bad"]
    assert "run the same command again" in errors["bad"]
    assert_each_step_once([jobs[0], jobs[2]], tmp_path)
    assert len(jobs[1].lines(tmp_path)) == 1, "what it had done is kept"


def test_a_worker_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv(SECONDS, "3")
    monkeypatch.setattr(local_pool, "SECONDS_TO_SAVE", 1)
    jobs = [StubJob("hangs", fault="stopped"), StubJob("0")]
    said = console()
    assert train_all(jobs, tmp_path, said, LocalEngine(2)) == {}
    assert_each_step_once(jobs, tmp_path)
    assert "stub hangs: no sign of life from" in said.file.getvalue()
    stopped = int((tmp_path / "hangs" / "failed").read_text())
    assert not Path(f"/proc/{stopped}").exists(), "the engine ends its processes"


def test_a_full_disk_is_named(tmp_path):
    said = attempt(StubJob("0", fault="full"), tmp_path)
    assert said is not None
    assert f"the disk of {tmp_path} is full" in said
    assert "free some space and run the same command again" in said
    assert attempt(StubJob("0"), tmp_path) is None
    assert_each_step_once([StubJob("0")], tmp_path)


def test_paths_in_messages_are_never_cut(tmp_path):
    said = Console(file=io.StringIO(), width=40)
    assert train_all([StubJob("0", fault="full")], tmp_path, said, LocalEngine(1)).keys() == {"0"}
    assert f"failed stub 0: the disk of {tmp_path} is full" in said.file.getvalue()
    (tmp_path / "file").touch()
    url = f"file://{tmp_path}/file/below"
    ResultsCopy(url, said).copy_run(tmp_path / "0")
    assert f"{tmp_path / '0'}: could not be copied to {url}" in said.file.getvalue()


def test_two_studies_in_one_folder_share_the_work(tmp_path):
    """Both end with everything; each step was done by one of them."""
    script = tmp_path / "study.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from rich.console import Console\n"
        "from antiphase.experiments.local_pool import LocalEngine\n"
        "from antiphase.experiments.train_all import train_all\n"
        "from tests.experiments.stub_jobs import shared_jobs\n"
        "if __name__ == '__main__':\n"
        "    root = Path(sys.argv[1])\n"
        "    sys.exit(len(train_all(shared_jobs(), root, Console(), LocalEngine(1))))\n"
    )
    root = tmp_path / "trained"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    studies = [
        subprocess.Popen([sys.executable, str(script), str(root)], env=environment)
        for _ in range(2)
    ]
    assert [study.wait(300) for study in studies] == [0, 0]
    assert_each_step_once(shared_jobs(), root)


def test_a_second_study_says_for_whom_it_waits(tmp_path):
    job, said = StubJob("0"), console()
    with lease(tmp_path / LEASES, "0"):

        class Nobody(LocalEngine):
            def submit(self, job, root):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_all([job], tmp_path, said, Nobody(1))
    assert "1 of them have a lease of another study in this folder" in said.file.getvalue()
    assert f"process {os.getpid()}" in said.file.getvalue()


def test_finished_results_are_copied_to_a_url(tmp_path):
    import fsspec

    root, said = tmp_path / "trained", console()
    copy = ResultsCopy("memory://bucket/study", said)
    jobs = [StubJob("0"), StubJob("bad", fault="full"), StubJob("1")]
    StubJob("0").perform(root)  # finished by an earlier call, which was killed before it copied
    assert list(train_all(jobs, root, said, CopyingEngine(LocalEngine(1), copy))) == ["bad"]
    files = fsspec.filesystem("memory")
    assert files.exists("/bucket/study/trained/1/model/config.json")
    assert not files.exists("/bucket/study/trained/0")
    (tmp_path / "results.json").write_text("[]")
    (root / "1" / "checkpoints").mkdir()
    (root / "1" / "checkpoints" / "large").touch()
    assert copy.copy_study(tmp_path)
    assert sorted(files.find("/bucket/study")) == [
        "/bucket/study/results.json",
        *(
            f"/bucket/study/trained/{n}/{name}"
            for n in "01"
            for name in ("model/config.json", "steps")
        ),
    ]


def test_a_url_that_fails_does_not_end_a_study(tmp_path):
    said = console()
    (tmp_path / "file").touch()
    copy = ResultsCopy(f"file://{tmp_path}/file/below", said)
    job = StubJob("0")
    assert train_all([job], tmp_path / "trained", said, CopyingEngine(LocalEngine(1), copy)) == {}
    assert "could not be copied to" in said.file.getvalue()
    assert "the same command copies it again" in said.file.getvalue()
    with pytest.raises(ValueError, match="--results-url: got 'nowhere://x'"):
        ResultsCopy("nowhere://x", said)


@pytest.mark.parametrize("url", ["nope", "", "/mnt/results"])
def test_a_url_needs_a_scheme(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text("seeds: [0]\n")
    done = invoke("train", "needle-nano", "--sweep", "grid.yaml", "--results-url", url)
    assert done.exit_code == 2
    assert f"--results-url: got {url!r}, expected SCHEME://PLACE" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["grid.yaml"]


def test_a_failed_copy_is_named_even_if_quiet(tmp_path, capsys):
    (tmp_path / "file").touch()
    url, study = f"file://{tmp_path}/file/below", tmp_path / "study"
    StubJob("0").perform(study / "trained")
    for quiet in (True, False):
        output = Output(quiet=quiet)
        _, copy = open_engine("local", None, url, output)
        copy_study(copy, study, output)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"{study / 'trained' / '0'}: could not be copied to {url}" in printed.err
    output = Output(quiet=True)
    _, copy = open_engine("local", None, f"file://{tmp_path}/copy", output)
    copy_study(copy, study, output)
    assert (tmp_path / "copy" / "trained" / "0" / "model" / "config.json").is_file()
    assert capsys.readouterr().err == ""
