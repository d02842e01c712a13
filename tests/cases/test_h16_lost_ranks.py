"""H16: one rank dies, or the port is taken. The launcher ends every rank, says which was first, and leaves nothing behind."""
import collections
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from product.tool import program


def launch(ranks, script, *options, **keywords):
    return subprocess.Popen([program(), "launch", "-n", str(ranks), *options, "--", "sh", "-c", script],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **keywords)


def alive(marker):
    """Processes whose environment has MARKER set to this."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"MARKER={marker}".encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            pass
    return found


class LostRanks(unittest.TestCase):
    def setUp(self):
        self.marker = f"{os.getpid()}-{self.id()}"
        self.environment = dict(os.environ, MARKER=self.marker)

    def run_job(self, ranks, script, *options):
        job = launch(ranks, script, *options, env=self.environment)
        out, err = job.communicate(timeout=15)
        self.assertEqual(alive(self.marker), [])
        return job.returncode, out, err

    def wait_until_gone(self, seconds):
        deadline = time.monotonic() + seconds
        while alive(self.marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(alive(self.marker), [])

    def test_environment_and_prefixes(self):
        code, out, err = self.run_job(3, 'echo "$RANK/$WORLD_SIZE/$LOCAL_RANK at $MASTER_ADDR"; echo trouble >&2; printf end')
        self.assertEqual(code, 0)
        for rank in range(3):
            self.assertIn(f"[{rank}] {rank}/3/{rank} at 127.0.0.1\n", out)
            self.assertIn(f"[{rank}] end\n", out)
            self.assertIn(f"[{rank}] trouble\n", err)

    def test_a_rank_fails(self):
        code, _, err = self.run_job(3, 'if [ $RANK = 1 ]; then echo the reason; exit 7; fi; sleep 60')
        self.assertEqual(code, 7)
        self.assertIn("rank 1 of 3 exited with code 7, the first to fail", err)
        self.assertIn("the reason", err)
        code, _, err = self.run_job(3, 'if [ $RANK = 2 ]; then kill -9 $$; fi; sleep 60')
        self.assertEqual(code, 128 + 9)
        self.assertIn("rank 2 of 3 was killed by signal 9", err)

    def test_b_the_launcher_is_ended(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            # Each rank has a child of its own, which must go too.
            job = launch(3, 'sleep 60 & echo up; wait', env=self.environment)
            for _ in range(3):
                self.assertIn("up", job.stdout.readline())
            job.send_signal(number)
            job.communicate(timeout=10)
            self.wait_until_gone(10)
            self.assertEqual(job.returncode, -9 if number == signal.SIGKILL else 128 + number)

    def test_b_signals_reach_the_ranks(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            job = launch(2, 'trap "echo bye; exit 0" TERM INT; echo up; while :; do sleep 0.1; done', env=self.environment)
            for _ in range(2):
                self.assertIn("up", job.stdout.readline())
            job.send_signal(number)
            out, err = job.communicate(timeout=10)
            self.assertEqual(sorted(out.split("\n")), ["", "[0] bye", "[1] bye"])
            self.assertEqual(job.returncode, 128 + number)
            self.assertIn(f"interrupted by signal {int(number)}", err)

    def test_b_output_without_end_does_not_keep_the_launcher(self):
        job = launch(1, 'exec yes', env=self.environment)
        reader = threading.Thread(target=lambda: collections.deque(job.stdout, maxlen=1))
        reader.start()
        time.sleep(0.5)
        job.send_signal(signal.SIGINT)
        try:
            self.assertEqual(job.wait(timeout=10), 128 + signal.SIGINT)
        finally:
            job.kill()
            reader.join()
            job.stdout.close()
            job.stderr.close()
        self.wait_until_gone(10)

    def test_b_all_that_a_rank_wrote_arrives(self):
        code, out, _ = self.run_job(1, 'seq 1 200000; printf "%0100000d" 0')
        self.assertEqual(code, 0)
        lines = out.split("\n")
        self.assertEqual(lines[:200000], [f"[0] {i}" for i in range(1, 200001)])
        self.assertEqual("".join(line[4:] for line in lines[200000:]), "0" * 100000)

    def test_b_the_port_goes_with_rank_0(self):
        connect = ('import os, socket, time\n'
                   'for _ in range(100):\n'
                   '    try:\n'
                   '        socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 1).close()\n'
                   '    except ConnectionRefusedError:\n'
                   '        raise SystemExit(print("refused"))\n'
                   '    time.sleep(0.05)\n')
        code, out, err = self.run_job(2, f"[ $RANK = 0 ] || exec {sys.executable} -c '{connect}'")
        self.assertEqual(code, 0, err)
        self.assertIn("[1] refused", out)

    def test_c_the_port_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            start = time.monotonic()
            code, out, err = self.run_job(2, 'echo started', "--port", str(port))
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual((code, out), (2, ""))
        for part in ("127.0.0.1", str(port), "in use"):
            self.assertIn(part, err)

    def test_d_two_at_once(self):
        for _ in range(10):
            jobs = [launch(2, 'echo $MASTER_PORT', env=self.environment) for _ in range(2)]
            ports = [job.communicate(timeout=15)[0].split()[1] for job in jobs]
            self.assertEqual([job.returncode for job in jobs], [0, 0])
            self.assertNotEqual(ports[0], ports[1])

    def test_e_no_such_command(self):
        job = subprocess.run([program(), "launch", "-n", "3", "--", "/no/such/program"], capture_output=True, text=True,
                             timeout=5)
        self.assertEqual(job.returncode, 2)
        self.assertIn("cannot run '/no/such/program': No such file or directory", job.stderr)

    def test_f_a_rank_ignores_sigterm(self):
        code, _, err = self.run_job(2, 'if [ $RANK = 0 ]; then exit 3; fi; trap "" TERM; while :; do sleep 1; done',
                                    "--grace", "1")
        self.assertEqual(code, 3)
        self.assertIn("rank 0 of 2 exited with code 3", err)


if __name__ == "__main__":
    unittest.main()
