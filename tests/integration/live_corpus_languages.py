# SPDX-License-Identifier: Apache-2.0
"""The programs of the corpus of checkpoints (live_corpus.py) that are not in Python.
"""

SHELL = """
set -eu
{}
echo ready
while read -r line; do
    if check; then echo ok; else echo "wrong: $?"; fi
done
"""

SHELLS = {
    "variables": """
a=(1 2 3); declare -A m=([x]=1 [y]=2); n=0
f() { echo "f of $1"; }
cd /tmp; umask 027; shopt -s extglob; set -o pipefail
check() { n=$((n + 1)); [ "${a[*]}" = "1 2 3" ] && [ "${m[y]}" = 2 ] && [ "$(f x)" = "f of x" ] && [ "$PWD" = /tmp ] && [ "$(umask)" = 0027 ] && shopt -q extglob && [ "$n" -gt 0 ]; }
""",
    "background_jobs": """
sleep 100000 & one=$!
sleep 100000 & two=$!
check() { kill -0 $one && kill -0 $two && [ "$(jobs -r | wc -l)" = 2 ]; }
""",
    "coprocess": """
coproc CAT { cat; }
check() { echo hello >&"${CAT[1]}"; read -r answer <&"${CAT[0]}"; [ "$answer" = hello ]; }
""",
    "pipeline_under_way": """
mkfifo /tmp/out
(n=0; while :; do n=$((n + 1)); echo $n; done) | cat | while read -r x; do echo "$x"; done > /tmp/out &
exec 5< /tmp/out
read -r last <&5
check() { for _ in 1 2 3 4 5 6 7 8 9 10; do read -r next <&5; [ "$next" = $((last + 1)) ] || { echo "$last then $next" >&2; return 1; }; last=$next; done; }
""",
    "traps": """
got=0
trap 'got=$((got + 1))' USR1
check() { before=$got; kill -USR1 $$; [ $got = $((before + 1)) ]; }
""",
    "here_document": """
exec 6<<END
$(seq 10000)
END
n=0
check() { read -r word <&6; n=$((n + 1)); [ "$word" = $n ]; }
""",
    "process_substitution": """
exec 7< <(n=0; while :; do echo $((n++)); done)
n=0
check() { read -r x <&7; [ "$x" = $n ] && n=$((n + 1)); }
""",
    "deep_chain": """
cat > /tmp/chain <<'END'
[ $1 = 0 ] && exec cat
while read -r x; do echo $((x + 1)); done | sh /tmp/chain $(($1 - 1))
END
coproc CHAIN { exec sh /tmp/chain 30; }
check() { echo 7 >&"${CHAIN[1]}"; read -r x <&"${CHAIN[0]}"; [ "$x" = 37 ]; }
check
""",
    "time_limit": """
timeout 100000 sleep 100000 & t=$!
until pgrep -x sleep > /dev/null; do :; done
check() { kill -0 $t && pgrep -x sleep > /dev/null; }
""",
}

PERL = """
$| = 1; my %h = map { $_ => $_ ** 2 } 1 .. 100; open(my $f, "+>", "/tmp/perl") or die; print $f "x" x 100; seek($f, 50, 0);
my $next = do { my $n = 0; sub { return ++$n } }; my $n = 0;
print "ready\\n";
while (<STDIN>) { $n++; print $next->() == $n && $h{9} == 81 && tell($f) == 50 ? "ok\\n" : "wrong\\n"; }
"""

NODE = """
const net = require('net'), readline = require('readline'), crypto = require('crypto');
let ticks = 0; setInterval(() => ticks++, 2);
const kept = Buffer.alloc(1 << 20, 'k'); const map = new Map([[1, {a: [1, 2, 3]}]]); const hash = crypto.createHash('sha256').update('begun');
const server = net.createServer(c => c.on('data', d => c.write(d.toString().toUpperCase()))).listen('/tmp/node.sock', () => console.log('ready'));
readline.createInterface({input: process.stdin}).on('line', () => {
    const before = ticks, client = net.connect('/tmp/node.sock', () => client.write('hello'));
    client.on('data', d => {
        client.destroy();
        const wait = () => ticks > before + 2 ? console.log(d.toString() === 'HELLO' && kept.every(b => b === 107) && map.get(1).a[2] === 3 && hash.copy().digest('hex').length === 64 ? 'ok' : 'wrong') : setTimeout(wait, 2);
        wait();
    });
}).on('close', () => process.exit(0));
"""

GO = r"""
package main

import (
	"bufio"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	var ticks atomic.Int64
	go func() {
		for range time.Tick(2 * time.Millisecond) {
			ticks.Add(1)
		}
	}()
	var lock sync.Mutex
	counts := map[int]int{}
	asked, answers := make(chan int), make(chan int)
	for worker := 0; worker < 8; worker++ {
		go func() {
			for n := range asked {
				lock.Lock()
				counts[n]++
				lock.Unlock()
				answers <- n * n
			}
		}()
	}
	heap := make([][]byte, 64)
	for i := range heap {
		heap[i] = make([]byte, 1<<16)
		for k := range heap[i] {
			heap[i][k] = byte(i + k)
		}
	}
	reader, writer, _ := os.Pipe()
	echo := make(chan string)
	go func() {
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			echo <- lines.Text()
		}
	}()
	check := func(round int) bool {
		before := ticks.Load()
		for n := 0; n < 100; n++ {
			asked <- n
			if <-answers != n*n {
				return false
			}
		}
		for i := range heap {
			heap[i] = append([]byte(nil), heap[i]...) // garbage, to be collected
			for k := range heap[i] {
				if heap[i][k] != byte(i+k) {
					return false
				}
			}
		}
		writer.WriteString("hello\n")
		for ticks.Load() < before+3 {
			time.Sleep(time.Millisecond)
		}
		return <-echo == "hello" && counts[99] == round
	}
	println := func(text string) { os.Stdout.WriteString(text + "\n") }
	println("ready")
	for lines, round := bufio.NewScanner(os.Stdin), 1; lines.Scan(); round++ {
		if check(round) {
			println("ok")
		} else {
			println("wrong")
		}
	}
}
"""

JAVA = r"""
import java.io.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.security.MessageDigest;

public class Corpus {
    public static void main(String[] arguments) throws Exception {
        AtomicLong ticks = new AtomicLong();
        ScheduledExecutorService clock = Executors.newScheduledThreadPool(1, task -> { Thread t = new Thread(task); t.setDaemon(true); return t; });
        clock.scheduleAtFixedRate(ticks::incrementAndGet, 0, 2, TimeUnit.MILLISECONDS);
        ExecutorService pool = Executors.newFixedThreadPool(4, task -> { Thread t = new Thread(task); t.setDaemon(true); return t; });
        List<byte[]> heap = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            byte[] block = new byte[1 << 16];
            Arrays.fill(block, (byte) i);
            heap.add(block);
        }
        byte[] first = sum(heap);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        while (lines.readLine() != null) {
            long before = ticks.get(), total = 0;
            List<Future<Integer>> answers = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                int n = i;
                answers.add(pool.submit(() -> n * n));
            }
            for (Future<Integer> answer : answers)
                total += answer.get();
            for (int i = 0; i < 100; i++)
                heap.set(i % 64, heap.get(i % 64).clone());
            System.gc();
            while (ticks.get() < before + 3)
                Thread.sleep(1);
            System.out.println(total == 328350 && Arrays.equals(sum(heap), first) ? "ok" : "wrong");
        }
    }

    static byte[] sum(List<byte[]> heap) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        heap.forEach(digest::update);
        return digest.digest();
    }
}
"""
