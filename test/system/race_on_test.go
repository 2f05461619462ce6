//go:build race

package system

// raceDetector: the program under test is built as the tests are.
const raceDetector = true
