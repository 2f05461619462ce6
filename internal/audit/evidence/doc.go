// Package evidence shows who led when and what was refused, and verifies by the rows of stamped
// tables that nothing was written under an epoch that had ended. Package fencing/evidence reads
// what it judges.
package evidence
