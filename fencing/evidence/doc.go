// Package evidence reads what proves, later, who wrote when: the terms in the ledger, and the
// stamped tables with the transactions that wrote their rows. It only states facts; package
// internal/audit/evidence draws the conclusions.
//
// Transaction ids are 64 bits wide here. A row has only the low 32 bits of its own; the rest is
// that of the youngest transaction with these bits which a statement can see. An id of 0 means a
// row that has lost its id.
package evidence
