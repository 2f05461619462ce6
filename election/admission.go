package election

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
)

// SQLSTATEs of refused join requests, taken from Postgres.
const (
	stateInvalidValue = "22023"
	stateNoPrivilege  = "42501"
)

// admits returns a *fencing.Refusal if claim asks for something that its role may not
// have.
func (s Settings) admits(claim fencing.JoinRequest) error {
	resource := strconv.QuoteToASCII(claim.Resource)
	if s.Users != nil && claim.Campaign != fencing.CampaignOff && !slices.Contains(s.Users, claim.User) {
		return &fencing.Refusal{
			SQLState: stateNoPrivilege,
			Message:  fmt.Sprintf("role %s may not campaign for resource %s", strconv.QuoteToASCII(claim.User), resource),
			Hint: "Fencepost's setting resources.<name>.users lists the roles that may. " +
				"Other roles can connect as observers with fencepost.campaign=off.",
		}
	}
	most, asked := s.MaxWorkerTimeout, claim.WorkerTimeout
	if most == 0 || asked < 0 || asked > 0 && asked <= most {
		return nil
	}
	text := asked.String()
	if asked == 0 {
		text = "0 (never)"
	}
	return &fencing.Refusal{
		SQLState: stateInvalidValue,
		Message:  fmt.Sprintf("fencepost.worker_timeout is %s, but resource %s allows at most %v", text, resource, most),
		Hint: fmt.Sprintf("Ask for %v or less, or leave it out (%v is configured). "+
			"Fencepost's setting lease.max_worker_timeout sets the limit; 0s means no limit.", most, s.WorkerTimeout),
	}
}
