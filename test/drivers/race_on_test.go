//go:build race

package drivers

// raceDetector makes the program under test be built with it, like the tests.
const raceDetector = true
