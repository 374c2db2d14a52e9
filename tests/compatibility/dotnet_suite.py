# SPDX-License-Identifier: Apache-2.0
"""The .NET Core runtime, from PyPI, in a Python process: just-in-time compiler, garbage collector,
threads, tasks, files
and child processes. The runtime is started when the module is imported."""

import json
import os
import tempfile
import unittest

import dotnetcore2
import pythonnet

root = os.path.join(os.path.dirname(dotnetcore2.__file__), "bin")
[version] = os.listdir(os.path.join(root, "shared", "Microsoft.NETCore.App"))
framework = {"name": "Microsoft.NETCore.App", "version": version}
with tempfile.NamedTemporaryFile("w", suffix=".runtimeconfig.json") as config:
    json.dump({"runtimeOptions": {"tfm": "netcoreapp3.1", "framework": framework}}, config)
    config.flush()
    pythonnet.load("coreclr", runtime_config=config.name, dotnet_root=root)
import clr  # noqa: E402
import System  # noqa: E402

for assembly in ("System.Collections", "System.Text.RegularExpressions", "System.Diagnostics.Process"):
    clr.AddReference(assembly)
from System.Collections.Generic import Dictionary, List  # noqa: E402
from System.Diagnostics import Process, ProcessStartInfo  # noqa: E402
from System.IO import File  # noqa: E402
from System.Text.RegularExpressions import Regex, RegexOptions  # noqa: E402
from System.Threading import ManualResetEventSlim, Thread, ThreadPool, ThreadStart, WaitCallback  # noqa: E402
from System.Threading.Tasks import Task  # noqa: E402


class DotNet(unittest.TestCase):
    def test_collections(self):
        numbers, squares = List[int](), Dictionary[int, int]()
        for number in range(1000):
            numbers.Add(number)
            squares[number] = number * number
        self.assertEqual((numbers.Count, squares[999]), (1000, 998001))

    def test_code_that_is_compiled_at_run_time(self):
        words = Regex("(?<word>[a-z]+)[0-9]+", RegexOptions.Compiled)
        self.assertEqual(words.Matches("ab1 cd22 333 e4").Count, 3)

    def test_the_garbage_collector(self):
        before = System.GC.CollectionCount(2)
        kept = [System.Array.CreateInstance(System.Byte, 100000) for _ in range(100)]
        System.GC.Collect()
        self.assertGreater(System.GC.CollectionCount(2), before)
        self.assertEqual(kept[99].Length, 100000)

    def test_threads(self):
        done = []
        threads = [Thread(ThreadStart(lambda: done.append(Thread.CurrentThread.ManagedThreadId))) for _ in range(8)]
        for thread in threads:
            thread.Start()
        for thread in threads:
            self.assertTrue(thread.Join(20000))
        self.assertEqual(len(set(done)), 8)

    def test_the_thread_pool(self):
        ended = ManualResetEventSlim(False)
        ThreadPool.QueueUserWorkItem(WaitCallback(lambda _: ended.Set()))
        self.assertTrue(ended.Wait(20000))

    def test_a_task_that_waits_for_time(self):
        begun = System.Environment.TickCount64
        self.assertTrue(Task.Delay(200).Wait(20000))
        self.assertGreaterEqual(System.Environment.TickCount64 - begun, 150)

    def test_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "file")
            File.WriteAllText(path, "written by .NET")
            with open(path) as file:
                self.assertEqual(file.read(), "written by .NET")

    def test_a_child_process(self):
        how = ProcessStartInfo("sh", "-c \"echo out; exit 3\"")
        how.RedirectStandardOutput, how.UseShellExecute = True, False
        child = Process.Start(how)
        self.assertEqual(child.StandardOutput.ReadToEnd(), "out\n")
        self.assertTrue(child.WaitForExit(20000))
        self.assertEqual(child.ExitCode, 3)

    def test_an_exception_is_pythons(self):
        with self.assertRaises(System.IO.FileNotFoundException):
            File.ReadAllText("/missing")


if __name__ == "__main__":
    unittest.main()
