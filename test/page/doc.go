// Package page contains no code, only a test of the page for operators in Chromium: in front of a real system, through
// what goes wrong there, and with many resources and terms. page.js is the visitor. It asks the test, line by line, to
// do what a visitor cannot: freeze a worker, kill a proxy, stop Postgres.
//
// It needs Chromium, so it has the build tag chromium, and make page-test runs it.
package page
