// SPDX-License-Identifier: Apache-2.0

/** What a Java program tells of time and chance: argument "chance" (all of it; its threads race) or "time". */
public class Clocks {
    private static void chance() throws Exception {
        System.out.println(System.currentTimeMillis() + " " + System.nanoTime() + " " + new java.util.Random().nextInt() + " " + new Object().hashCode());
        System.out.println(java.util.UUID.randomUUID() + " " + ProcessHandle.current().pid() + " " + java.util.Set.of("a", "b", "c", "d", "e"));
        var pool = java.util.concurrent.Executors.newFixedThreadPool(4);
        for (int i = 0; i < 8; i++) {
            int number = i;
            pool.submit(() -> System.out.println(number + " " + System.nanoTime()));
        }
        pool.shutdown();
        pool.awaitTermination(1, java.util.concurrent.TimeUnit.HOURS);
    }

    private static void waits() throws Exception {
        long start = System.currentTimeMillis();
        Thread.sleep(30000);
        System.out.println(start / 1000 + " " + (System.currentTimeMillis() - start) / 1000);
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            int number = i;
            threads[i] = new Thread(() -> {
                try {
                    Thread.sleep(1000L * (4 - number));
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
                System.out.println(number);
            });
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.out.println(System.currentTimeMillis() / 1000);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("chance"))
            chance();
        else
            waits();
    }
}
