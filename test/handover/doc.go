// Package handover tests that an operator's choice of the next leader works with real servers: the
// program as processes, over each lease service, with two proxies and workers that write meanwhile.
package handover
