package main

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
)

// typedRow is a row of the table typed without its array, for which each driver has its
// own type.
type typedRow struct {
	i4      int32
	i8      int64
	num     string
	txt     string
	yes     bool
	raw     []byte
	at      time.Time
	doc     []byte
	uid     string
	nothing *string
}

func (v typedRow) result(list any) fields {
	return fields{
		"int4": v.i4, "int8": strconv.FormatInt(v.i8, 10), "numeric": v.num, "text": v.txt, "bool": v.yes,
		"bytea": hex.EncodeToString(v.raw), "timestamptz": v.at.UTC().Format(millis), "jsonb": json.RawMessage(v.doc),
		"array": list, "uuid": v.uid, "null": v.nothing,
	}
}
