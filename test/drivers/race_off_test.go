//go:build !race

package drivers

const raceDetector = false
