package sqltext

import (
	"bytes"
	"testing"
)

func TestTwoPhaseIsFoundInTextsThatAreNotParsed(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"prepare transaction 'x'": true, "begin; PREPARE \t\r\n\v\f Transaction 'x'": true, "prepare/* */transaction 'x'": true, "prepare --\ntransaction 'x'": true,
		"prepare /**/ p as select 1": true, "pprepare transaction": true, "prepare p as select 1": false, "preparetransaction": false, "prepare": false, "prepar": false, "": false,
		"prepare transactio": false, "select 'p'; prepare x as select 1; prepare\ntransaction 'y'": true,
	} {
		if got := GuessOf([]byte(sql)).PreparesTransaction; got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

func TestGuess(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Guess{
		"":                              {},
		"select 1":                      {},
		"selec 'x'; Vacuum":             {Vacuums: true},
		"selec; deallocate p":           {FreesNames: true},
		"selec; Execute p":              {Executes: true},
		"selec; set fencepost.Token":    {Chooses: true},
		"selec; set fencepost.epoch":    {},
		"selec; DISCARD all":            {FreesNames: true},
		"selec; prepare p as table t":   {FreesNames: true},
		"disc; dealloc; prepar; vac":    {},
		" \n\f prepare transaction 'x'": {PreparesTransaction: true, StartsWithPrepareTransaction: true, FreesNames: true},
		"Prepare\tTRANSACTION 'x'":      {PreparesTransaction: true, StartsWithPrepareTransaction: true, FreesNames: true},
		"prepare/**/transaction 'x'":    {PreparesTransaction: true, FreesNames: true},
		"begin; prepare transaction":    {PreparesTransaction: true, FreesNames: true},

		"begin; set Transaction\nSNAPSHOT 'x'":       {ImportsSnapshot: true},
		"set transaction/* a */snapshot 'x'":         {ImportsSnapshot: true},
		"begin transaction /* selec */":              {},
		"set transactionsnapshot; snapshot":          {},
		"set transaction read only; select snapshot": {},
	} {
		if got := GuessOf([]byte(sql)); got != want {
			t.Errorf("%q: %+v, want %+v", sql, got, want)
		}
	}
}

// BenchmarkTwoPhaseInALongText: the session is locked during the search.
func BenchmarkTwoPhaseInALongText(b *testing.B) {
	text := bytes.Repeat([]byte("insert into p values ('x;'); "), 1<<20/29)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if GuessOf(text).PreparesTransaction {
			b.Fatal("found")
		}
	}
}
