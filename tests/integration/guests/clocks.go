// SPDX-License-Identifier: Apache-2.0

// What a Go program tells of time and chance: argument "chance", "own-chance" or "time".
package main

import (
	crypto "crypto/rand"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

func chance() {
	secret := make([]byte, 8)
	crypto.Read(secret)
	fmt.Printf("%x %d\n", secret, os.Getpid())
}

// Of the runtime's generators, of which each of its threads has one; which of these runs this is not told.
func ownChance() {
	fmt.Println(rand.Int())
	for key := range map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5} {
		fmt.Print(key, " ")
	}
	fmt.Println()
}

func waits() {
	start := time.Now()
	time.Sleep(time.Hour)
	fmt.Println(start.Unix(), int(time.Since(start).Seconds()))
	var group sync.WaitGroup
	done := make(chan int, 8)
	for i := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			time.Sleep(time.Duration(8-i) * time.Second)
			done <- i
		}()
	}
	group.Wait()
	close(done)
	for i := range done {
		fmt.Print(i, " ")
	}
	select {
	case <-make(chan int):
	case <-time.After(24 * time.Hour):
	}
	fmt.Println(time.Now().Unix())
}

func main() {
	switch os.Args[1] {
	case "chance":
		chance()
	case "own-chance":
		ownChance()
	default:
		waits()
	}
}
