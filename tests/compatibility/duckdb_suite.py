# SPDX-License-Identifier: Apache-2.0
"""DuckDB's own tests are no part of its package, so these stand for them. The database is opened, and its threads are
started, when the module is imported: a fork copies it while it runs, and a hibernated sandbox contains it."""

import csv
import datetime
import os
import tempfile
import unittest

import duckdb

scratch = tempfile.TemporaryDirectory()
connection = duckdb.connect(os.path.join(scratch.name, "numbers.duckdb"))
connection.execute("SET threads = 4")
connection.execute("CREATE TABLE numbers AS SELECT i, i % 97 AS rest, hash(i) AS scattered FROM range(1000000) t(i)")


class DuckDB(unittest.TestCase):
    def one(self, statement, *values):
        return connection.execute(statement, values).fetchone()

    def test_aggregates_over_several_threads(self):
        self.assertEqual(self.one("SELECT count(*), sum(i) FROM numbers"), (1000000, 499999500000))
        self.assertEqual(self.one("SELECT count(DISTINCT scattered) FROM numbers")[0], 1000000)

    def test_a_join(self):
        self.assertEqual(self.one("SELECT count(*) FROM numbers a JOIN numbers b ON a.i = b.rest")[0], 1000000)

    def test_a_window(self):
        found = self.one("SELECT max(d) FROM (SELECT i - lag(i) OVER (PARTITION BY rest ORDER BY i) AS d FROM numbers)")
        self.assertEqual(found[0], 97)

    def test_a_transaction_that_is_rolled_back(self):
        connection.execute("BEGIN")
        connection.execute("DELETE FROM numbers")
        self.assertEqual(self.one("SELECT count(*) FROM numbers")[0], 0)
        connection.execute("ROLLBACK")
        self.assertEqual(self.one("SELECT count(*) FROM numbers")[0], 1000000)

    def test_a_checkpoint_and_a_second_connection(self):
        connection.execute("CREATE OR REPLACE TABLE small AS SELECT 42 AS answer")
        connection.execute("CHECKPOINT")
        self.assertEqual(connection.cursor().execute("SELECT answer FROM small").fetchone()[0], 42)

    def test_a_sort_that_spills_to_the_disk(self):
        limit = self.one("SELECT current_setting('memory_limit')")[0]
        connection.execute("SET memory_limit = '100MB'")
        try:
            rows = connection.execute(
                "SELECT scattered, i, rest FROM numbers ORDER BY scattered LIMIT 999999"
            ).fetchall()
        finally:
            connection.execute(f"SET memory_limit = '{limit}'")
        self.assertEqual(len(rows), 999999)
        self.assertEqual(rows, sorted(rows))

    def test_a_csv_and_a_parquet_file(self):
        path = os.path.join(scratch.name, "rows.csv")
        connection.execute(f"COPY (SELECT i FROM numbers WHERE i < 10) TO '{path}' (HEADER)")
        with open(path, newline="") as file:
            self.assertEqual([int(row["i"]) for row in csv.DictReader(file)], list(range(10)))
        path = os.path.join(scratch.name, "rows.parquet")
        connection.execute(f"COPY numbers TO '{path}' (FORMAT parquet)")
        self.assertEqual(self.one(f"SELECT sum(rest) FROM '{path}'"), self.one("SELECT sum(rest) FROM numbers"))

    def test_the_memory_limit_fits_the_machine_that_the_program_sees(self):
        limit = self.one("SELECT current_setting('memory_limit')")[0]
        number, unit = float(limit.split()[0]), limit.split()[1]
        allowed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertLessEqual(number * {"MiB": 1 << 20, "GiB": 1 << 30}[unit], allowed)

    def test_its_clock_is_pythons(self):
        now = self.one("SELECT epoch(get_current_timestamp())")[0]
        self.assertLess(abs(now - datetime.datetime.now().timestamp()), 60)


if __name__ == "__main__":
    unittest.main()
