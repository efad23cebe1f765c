"""Two processes share a model: a changed result is found and named, and no process hangs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from probing import needs_gloo, torchrun

HERE = Path(__file__).parent
SMALL = ("--length", "14", "--layers", "2")

pytestmark = needs_gloo


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("attncheck:")]


def test_both_processes_run_and_one_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    probes = ("--probe", "decode-paths", "--probe", "reference", "--report", f"json={report}")
    done = torchrun(
        "-m", "attncheck", "run", "config:llama", "config:gpt_oss", "--tp", *SMALL, *probes
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("pass on 2 models") == 1
    targets = json.loads(report.read_text())["targets"]
    assert [target["verdict"] for target in targets] == ["pass", "pass"]
    assert all(
        control["detected"]
        for target in targets
        for result in target["results"]
        for control in result["controls"]
    )
    assert [target["settings"]["asked"]["tp"] for target in targets] == [2, 2]


def test_a_fault_is_diagnosed_by_both_in_step(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (
        "run",
        "config:llama",
        "--tp",
        *SMALL,
        "--probe",
        "decode-paths",
        "--report",
        f"json={report}",
    )
    done = torchrun(str(HERE / "injected_sharding.py"), "restarts", *command)
    assert done.returncode == 1
    assert said(done) == []
    sharding, result = json.loads(report.read_text())["targets"][0]["results"]
    assert [case["name"] for case in sharding["cases"] if case["verdict"] == "fail"] == [
        "in chunks on a cache"
    ]
    assert (result["probe"], result["verdict"]) == ("decode-paths", "fail")
    assert result["diagnosis"]["fault"] == "position-restart"
    assert result["location"]["module"] == "model.layers.0.self_attn"


def test_a_doubled_reduction_is_named() -> None:
    sides = ("--left", "tp=1", "--right", "tp=2")
    done = torchrun(
        str(HERE / "injected_sharding.py"), "doubled", "compare", "config:llama", *SMALL, *sides
    )
    assert done.returncode == 1
    assert (
        "First diverging module: model.layers.1.self_attn.o_proj from position 0 on" in done.stdout
    )
    assert "weights are the same" in done.stdout


PASS = "in a forward of 1 x 7 tokens, in the probe sharding"
ENDS = {
    "raises": f"rank 1 raised ZeroDivisionError: injected {PASS}, where rank 0 waits for it",
    "raises_outside": "rank 1 raised ZeroDivisionError: injected, in the probe sharding",
    "sleeps": f"rank 1 ({PASS}, at injected_sharding.py:",
    "asks_to_exit": f"rank 1 raised SystemExit: os._exit(7) {PASS}, where rank 0 waits for it",
    "exits": f"rank 1 has exited unexpectedly while rank 0 was {PASS}",
    "first_exits": "the rendezvous process (rank 0) has exited while rank 1 was in a forward of "
    "1 x 4 tokens",
}


def test_a_process_that_is_gone_ends_all_with_one_line_and_a_slow_one_does_not() -> None:
    script, faults = str(HERE / "injected_sharding.py"), ",".join((*ENDS, "slow"))
    command = [
        sys.executable,
        script,
        faults,
        "run",
        "config:llama",
        "--tp",
        *SMALL,
        "--probe",
        "future-token",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ATTNCHECK_TP_TIMEOUT": "4"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.pop("slow") == [[0, 0], []]
    for fault, (codes, lines) in found.items():
        assert len(lines) == 1, (fault, lines)
        assert ENDS[fault] in lines[0], fault
        assert ("has made no progress for 4 s" in lines[0]) == (fault == "sleeps")
        assert codes == {"exits": [3, 7], "first_exits": [7, 3]}.get(fault, [3, 3]), fault


def test_torchrun_ends_the_others_and_they_name_the_process_that_is_gone() -> None:
    done = torchrun(
        str(HERE / "injected_sharding.py"),
        "exits",
        "run",
        "config:llama",
        "--tp",
        *SMALL,
        "--probe",
        "future-token",
    )
    assert said(done) == [f"attncheck: {ENDS['exits']}"]


def test_a_single_process_is_refused_with_the_command_to_start() -> None:
    command = [sys.executable, "-m", "attncheck", "run", "builtin:gqa", "--tp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2 -m attncheck run TARGET --tp" in done.stderr


def test_two_nodes_share_a_model(tmp_path: Path) -> None:
    """Two agents of torchrun meet on this machine, as those of two machines would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    probes = ("--probe", "kv-repeat", "--probe", "decode-paths")
    run = ("-m", "attncheck", "run", "config:llama", "--tp", *SMALL, *probes)
    report = ("--report", f"json={tmp_path}/report.json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ATTNCHECK_TP_TIMEOUT": "60"}
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", *meet, "--master-port", port),
                *("--node-rank", str(rank), *run, *report),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said_by = [node.communicate(timeout=150) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said_by
    assert [out.count("pass on 1 model") for out, _ in said_by] == [1, 0]
    (target,) = json.loads((tmp_path / "report.json").read_text())["targets"]
    assert (target["verdict"], target["settings"]["asked"]["tp"]) == ("pass", 2)
    assert [each["probe"] for each in target["results"]] == [
        "sharding",
        "decode-paths",
        "kv-repeat",
    ]
