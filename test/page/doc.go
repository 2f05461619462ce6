// Package page contains no code, only a test of the page for operators in Chromium: in front of a real system, through
// what goes wrong there, and with many resources and terms. page.js is the visitor. It asks the test, line by line, to
// do what a visitor cannot: freeze a worker, kill a proxy, stop Postgres.
//
// make page-test runs it, because it needs Chromium: FENCEPOST_TEST_CHROMIUM says that it is there.
package page
