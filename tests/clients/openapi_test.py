"""/openapi.json as schemathesis reads it: every operation with requests inside and outside its schema."""

import subprocess
import sys
from pathlib import Path

import servers


def test_the_server_does_what_its_document_says(tmp_path):
    server = servers.serve("--max-tokens", "6", "--context", "2048", "--quiet")
    try:
        # Not every limit can be written as a schema, as tools that a choice needs: what is refused may be within it.
        run = subprocess.run(
            [Path(sys.executable).parent / "schemathesis", "run", server.url + "/openapi.json", "--checks", "all",
             "--exclude-checks", "positive_data_acceptance", "--max-examples", "20", "--seed", "1", "--request-timeout", "30",
             "--continue-on-failure"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        assert run.returncode == 0, run.stdout[-6000:]
        assert "Tested: 15" in run.stdout, run.stdout[-1000:]
        metrics = server.metrics()
        assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
        assert server.get("/health").status_code == 200
    finally:
        assert server.stop() == 0
