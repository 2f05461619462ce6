//go:build race

package drivers

// raceDetector: the program under test is built as the tests are.
const raceDetector = true
